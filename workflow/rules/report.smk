# The page on the run, and its figures for a cluster's monitoring.
#
# REQUIRED INPUTS: plan.tsv, ledger.tsv, summary.json; the script also reads receipts and logs
# OUTPUTS: report.html, metrics.prom


rule report:
    """Show what ran and where the time went: a page for a browser, figures for Prometheus."""
    input:
        ledger=run.results.ledger,
        summary=run.results.summary,
    output:
        page=report(
            run.results.report,
            caption="../report/page.rst",
            category="The run",
            labels={"what": "page: verdict, sum, devices, failures"},
        ),
        metrics=report(
            run.results.metrics,
            caption="../report/metrics.rst",
            category="The run",
            labels={"what": "figures for Prometheus"},
        ),
    log:
        run.results.log("report"),
    localrule: True
    conda:
        "../envs/shardwise.yaml"
    params:
        results=run.results.root,
    shell:
        'python "$SCRIPTS"/report.py -- {params.results:q} 2> {log:q}'
