# The sum over all shards, by MPI.
#
# REQUIRED INPUTS: plan.tsv, all receipts, the products beside them
# OUTPUTS: ledger.tsv, sum.npy (and what else `reduce.statistics` names), summary.json


rule ledger:
    """Check every receipt against the plan; one row per shard."""
    input:
        plan=run.plan_for("ledger"),
        receipts=run.all_receipts,
    output:
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
    shell:
        'python "$SCRIPTS"/ledger.py --plan={input.plan:q} 2> {log:q}'


rule reduce:
    """Sum the products of all shards over MPI ranks."""
    input:
        plan=run.plan_for("reduce"),
        ledger=run.results.ledger,
    output:
        run.arrays(),
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
        # The launcher; the profile may name another. Slurm's plugin refuses MPI jobs of one task.
        mpi="mpiexec",
        tasks=max(2, run.reduce["ranks"]),
        mem_mb=run.mib("reduce"),
        runtime=run.minutes("reduce"),
    params:
        ranks=run.reduce["ranks"],
        statistics=run.reduce["statistics"],
    shell:
        'python "$SCRIPTS"/reduce.py --plan={input.plan:q} --ranks {params.ranks}'
        " --launcher {resources.mpi:q} --statistics {params.statistics:q} 2> {log:q}"
