# The sum over all shards, by MPI.
#
# REQUIRED INPUTS: plan.tsv, all receipts, the products next to them
# OUTPUTS: ledger.tsv, logs/ledger/{plan key}; sum.npy and the other arrays that the config asks for,
#          summary.json, done/{plan key}


rule ledger:
    """Check every receipt against the plan; one row per shard."""
    input:
        run.product_files,
    output:
        marker=run.results.listed(run.plan.key),
        ledger=report(
            run.results.ledger,
            caption="../report/ledger.rst",
            category="Proof",
            labels={"what": "ledger: one row per shard"},
        ),
    log:
        run.results.log("ledger"),
    localrule: True
    conda:
        "../envs/shardwise.yaml"
    params:
        plan=run.results.plan,
    shell:
        'python "$SCRIPTS"/ledger.py --plan={params.plan:q} 2> {log:q}'


rule reduce:
    """Sum the products of all shards with MPI ranks."""
    input:
        run.ledger_for_reduce,
    output:
        run.array_files,
        run.results.summed(run.plan.key),
        summary=report(
            run.results.summary,
            caption="../report/summary.rst",
            category="Proof",
            labels={"what": "summary: the receipt of the sum"},
        ),
    log:
        run.results.log("reduce"),
    conda:
        "../envs/shardwise.yaml"
    resources:
        # The MPI launcher; the profile may name another. Slurm's plugin refuses MPI jobs of one task.
        mpi="mpiexec",
        tasks=max(2, run.reduce["ranks"]),
        mem_mb=run.mib("reduce"),
        runtime=run.minutes("reduce"),
    params:
        plan=run.results.plan,
        ranks=run.reduce["ranks"],
        statistics=run.reduce["statistics"],
    shell:
        'python "$SCRIPTS"/reduce.py --plan={params.plan:q} --ranks {params.ranks}'
        " --launcher {resources.mpi:q} --statistics {params.statistics:q} 2> {log:q}"
