# The plan, which says which matrices each shard holds; and the synthetic stack, if there is no input.
#
# REQUIRED INPUTS: the plan that the main process made from the config and the headers of the input
# OUTPUTS: plan.tsv, sources.tsv, plan.json, logs/plan/{mark}; input.npy, input-{key}.json (synthetic only)


rule plan:
    """Commit the plan of this run, if its input is still the same."""
    input:
        run.plan_input,
    output:
        run.plan_files,
    log:
        run.results.log("plan"),
    localrule: True
    conda:
        "../envs/shardwise.yaml"
    params:
        planned=run.planned.plan,
        digest=run.plan.facts.digest,
    shell:
        'python "$SCRIPTS"/plan.py --planned={params.planned:q} --digest={params.digest} 2> {log:q}'


# Only without an input: no rule may have a file of the user's as its output.
if run.plan.facts.synthetic:

    rule synthesize:
        """Generate the stack of the config's key `synthetic`."""
        input:
            run.plan_mark,
        output:
            run.stack_files,
        log:
            run.results.log("synthesize"),
        conda:
            "../envs/shardwise.yaml"
        resources:
            mem_mb=run.mib("synthesize"),
            runtime=run.minutes("synthesize"),
        params:
            plan=run.results.plan,
        shell:
            'python "$SCRIPTS"/synthesize.py --plan={params.plan:q} 2> {log:q}'
