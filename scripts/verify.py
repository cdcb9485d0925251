"""Tell whether a results folder is whole, on any later day and machine. It changes nothing.

Every byte of it is read and compared with the receipts, and these with the plan, the ledger and the
summary. The last line says it all. Files that are not part of the run are summed up in one line,
and input that has changed or is not here is listed: neither counts, the latter only with --input.
"""

import sys
import time
from argparse import ArgumentParser, Namespace

from shardwise import cli
from shardwise.errors import one_line
from shardwise.observe import audit
from shardwise.observe.audit import Audit
from shardwise.plan import config

_PROGRESS_SECONDS = 10.0
_MOST_LISTED = 20


class _Progress:
    """A line on stderr now and then."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, text: str) -> None:
        """Tell how far it is, unless that was told just before."""
        if time.monotonic() - self._last >= _PROGRESS_SECONDS:
            self._last = time.monotonic()
            cli.log.info("%s", text)


def main(options: Namespace) -> int:
    """Audit, print what was found, and return its exit code."""
    root = config.folder_of_run(options.configfile, options.results)
    made = audit.look(root, options.threads, options.input, _Progress())
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr] # names of any alphabet
    sys.stdout.write(made.json() if options.json else _text(made))
    sys.stdout.flush()
    return made.code


def _text(made: Audit) -> str:
    """The first findings of each kind, what is not part of the run, and the verdict."""
    lines = []
    for kind in audit.LISTED:
        found = made.of(kind)
        lines += [f"{kind}: {each.path}: {each.reason}" for each in found[:_MOST_LISTED]]
        if len(found) > _MOST_LISTED:
            lines.append(f"{kind}: … and {len(found) - _MOST_LISTED} more; --json has all")
    lines += [made.describe_foreign()] if made.of(audit.FOREIGN) else []
    return "".join(f"{one_line(line)}\n" for line in [*lines, made.line()])


def arguments() -> ArgumentParser:
    """The command line."""
    made = cli.parser(__doc__)
    made.epilog = (
        "Exit codes: 0 whole; 3 damaged, the last line names what and how to repair it; 75 "
        "unfinished: nothing is wrong, and snakemake as before goes on; 2 no results folder, no "
        "plan in it, or a config that cannot be read."
    )
    cli.add_results(made)
    made.add_argument(
        "--input", action="store_true",
        help="read the input files, too, where they were planned, and compare them with what the "
        "shards were computed from; input that has changed then counts as damage",
    )  # fmt: skip
    made.add_argument(
        "--threads", type=cli.positive, default=8, metavar="N",
        help="threads that read; each takes 8 MiB of memory, with --input 40",
    )  # fmt: skip
    made.add_argument("--json", action="store_true", help="write all findings as JSON")
    return made


if __name__ == "__main__":
    cli.run(main, arguments())
