# One file of matrices per shard, where `materialize` is true.
#
# REQUIRED INPUTS: plan.tsv, the input files that hold the shard's matrices
# OUTPUTS: shards/{shard}.npy, shards/{shard}.json (its receipt)


rule shard:
    """Copy the matrices of one shard into a file of their own."""
    input:
        plan=run.plan_for("shard"),
        matrices=run.input_files,
    output:
        matrices=run.pattern(run.results.shard),
    log:
        run.log_pattern("shard"),
    resources:
        mem_mb=run.mib("shard"),
        runtime=run.minutes("shard"),
    params:
        digest=run.shard_digest,
    shell:
        'python "$SCRIPTS"/shard.py --plan={input.plan:q} --shard {wildcards.shard}'
        " --digest={params.digest} 2> {log:q}"
