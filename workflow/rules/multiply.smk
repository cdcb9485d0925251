# The products of each shard, under `dispatch: jobs`: the jobs that ask for a GPU.
#
# REQUIRED INPUTS: plan.tsv, shards/{shard}.npy (or the input files), the right factor of A @ B
# OUTPUTS: products/{shard}.npy, products/{shard}.json (the receipt)

if run.dispatch == "jobs":

    rule multiply:
        """Multiply the matrices of one shard, prove the products, write them with a receipt."""
        input:
            plan=run.plan_for("multiply"),
            factors=run.factor_files,
        output:
            product=run.pattern(run.results.product),
            receipt=run.pattern(run.results.receipt),
        log:
            run.log_pattern("multiply"),
        conda:
            "../envs/shardwise.yaml"
        resources:
            mem_mb=run.mib("multiply"),
            runtime=run.minutes("multiply"),
        params:
            fingerprint=run.fingerprint,
        shell:
            'python "$SCRIPTS"/multiply.py --plan={input.plan:q} --shard {wildcards.shard}'
            " --digest={params.fingerprint} --mem-mb {resources.mem_mb} 2> {log:q}"
