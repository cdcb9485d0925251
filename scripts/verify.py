"""Check whether a results folder is whole, on any later day and machine. It changes nothing.

It reads every byte and compares the files with the receipts, and the receipts with the plan, the
ledger and the summary. The last line is the verdict. Input outside the folder is not read: a dry
run of snakemake says if it has changed.
"""

import sys
from argparse import Namespace

from shardwise import cli
from shardwise.observe import audit
from shardwise.plan import config


def main(options: Namespace) -> int:
    """Audit, print the findings, and return the exit code."""
    root = config.existing_folder(options.configfile, options.results)
    result = audit.look(root, options.threads, cli.now_and_then())
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr] # names of any alphabet
    sys.stdout.write(result.json() if options.json else result.text())
    sys.stdout.flush()
    return result.code


if __name__ == "__main__":
    parser = cli.parser(__doc__)
    parser.epilog = (
        "Exit codes: 0 whole; 3 damaged, the last line names what and how to repair it; 75 "
        "unfinished: nothing is wrong, run snakemake as before to continue; 2 no results folder, "
        "no plan in it, or a config that cannot be read."
    )
    cli.add_results(parser)
    add = parser.add_argument
    words = "threads that read; each takes 8 MiB of memory"
    add("--threads", type=cli.positive, default=8, metavar="N", help=words)
    add("--json", action="store_true", help="write all findings as JSON")
    cli.run(main, parser)
