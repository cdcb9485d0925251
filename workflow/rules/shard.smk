# Under `dispatch: jobs`, if `materialize` is true, one job per shard copies its matrices into a file.
# Under the other dispatches, the workers themselves copy their shards.
#
# REQUIRED INPUTS: plan.tsv, the input files that hold the shard's matrices
# OUTPUTS: shards/{shard}-{key}.npy, shards/{shard}-{key}.json (its receipt)

if run.dispatch == "jobs":

    rule shard:
        """Copy the matrices of one shard into a file of their own."""
        input:
            run.input_files,
        output:
            matrices=run.results.shard(run.any_shard),
            receipt=run.results.shard_receipt(run.any_shard),
        log:
            run.results.log("shard", run.any_shard),
        conda:
            "../envs/shardwise.yaml"
        resources:
            mem_mb=run.mib("shard"),
            runtime=run.minutes("shard"),
        params:
            plan=run.results.plan,
        shell:
            'python "$SCRIPTS"/shard.py --plan={params.plan:q} --shard {wildcards.shard}'
            " --key {wildcards.key} 2> {log:q}"
