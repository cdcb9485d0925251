"""Write the page on a run, report.html: what was computed, if it is proven, where the time went.

It also writes the same figures for Prometheus, metrics.prom, unless --output names another place.
It needs only the results folder, at any time: the first line of the page says whether the run is in
progress, has failed, or is damaged. It reads no byte of the products.
"""

from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path

from shardwise import cli
from shardwise.files import small
from shardwise.observe import metrics
from shardwise.observe.folder import Observer
from shardwise.observe.report import page
from shardwise.plan import config
from shardwise.records import failures


def main(options: Namespace) -> None:
    """Make the page and the figures from one look at the folder."""
    observer = Observer(config.existing_folder(options.configfile, options.results))
    small.refuse_unmarked(observer.results)
    seen, told = observer.look(), nullcontext()
    if seen.plan and options.output is None:
        log = observer.results.log("report")
        told = failures.noted(observer.results, f"report-{seen.plan.key}", log)
    with told:
        cli.log.info("report: %s", page.write(seen, options.output))
        if options.output is None:
            metrics.write(seen)


if __name__ == "__main__":
    made = cli.parser(__doc__)
    made.epilog = (
        "Exit codes: 0 the page is written, whatever it says; 2 no folder of a run, a config "
        "that cannot be read, or a place where you may not write; 75 the disk is full or fails."
    )
    cli.add_results(made)
    made.add_argument(
        "--output", type=Path, metavar="FILE",
        help="where to write the page; default: report.html in the results folder. Its links to "
        "logs work in the results folder only",
    )  # fmt: skip
    cli.run(main, made)
