# One job per shard computes its products, under `dispatch: jobs`. These jobs ask for a GPU.
#
# REQUIRED INPUTS: plan.tsv, shards/{shard}-{key}.npy (or the input files), B if there is one
# OUTPUTS: products/{shard}-{key}.npy, products/{shard}-{key}.json (the receipt)

if run.dispatch == "jobs":

    rule multiply:
        """Multiply the matrices of one shard, prove the products, write them with a receipt."""
        input:
            run.factor_files,
        output:
            product=run.results.product(run.any_shard),
            receipt=run.results.receipt(run.any_shard),
        log:
            run.results.log("multiply", run.any_shard),
        # Multiply each copied shard before copying others: its copy is still in the page cache, and
        # finished shards show early how long the rest will take.
        priority: 1
        conda:
            "../envs/shardwise.yaml"
        resources:
            mem_mb=run.mib("multiply"),
            runtime=run.minutes("multiply"),
        params:
            plan=run.results.plan,
        # A user's function may end the process with 0; without a product the job has failed all the same.
        shell:
            'python "$SCRIPTS"/multiply.py --plan={params.plan:q} --shard {wildcards.shard}'
            " --key {wildcards.key} --mem-mb {resources.mem_mb} 2> {log:q}"
            " && test -e {output.receipt:q}"
