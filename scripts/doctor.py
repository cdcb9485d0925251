"""Tell what would run on this machine and what is missing. It changes nothing and kills nothing.

With --clear-quarantine it takes devices out of quarantine, and does nothing else.
"""

import signal
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from shardwise import cli
from shardwise.devices import quarantine
from shardwise.errors import InputError
from shardwise.files.paths import Results
from shardwise.plan import config

try:
    from shardwise.doctor import report
except ImportError as error:  # who asks what is missing is to be told, and not how Python says it
    sys.stderr.write(f"{error}: run make install first\n")
    sys.exit(2)


def main(options: Namespace) -> int:
    """Look at everything, write the report, and return the exit code."""
    if options.clear_quarantine is not None:
        return _clear(options)
    chosen, found = report.choose(options.configfile, options.results)
    chosen |= {"launcher": options.launcher, "time_limit": options.time_limit}
    made = report.look(chosen, found)
    if options.json:
        sys.stdout.write(made.json())
    else:
        made.show(report.console())
    return made.code


def _clear(options: Namespace) -> int:
    """Take a device, or all, out of quarantine; the exit code."""
    try:
        results = Results(config.folder_of_run(options.configfile, options.results))
        cleared = quarantine.clear(results, options.clear_quarantine or None)
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    for entry in cleared:
        sys.stdout.write(f"no longer in quarantine: {entry}\n")
    if not cleared:
        sys.stdout.write(f"nothing is in quarantine for {results.root}\n")
    return 0


def arguments() -> ArgumentParser:
    """The command line."""
    made = cli.parser(__doc__)
    made.epilog = (
        "Exit codes: 0 the main job can run here; 2 something has to be installed or changed "
        "first; 75 try again (devices busy or lost). The keys of --json are in docs/doctor.md."
    )
    made.add_argument(
        "--configfile", nargs="+", type=Path, metavar="FILE",
        help="config files, later over earlier, for results and backend; left out, config.yaml",
    )  # fmt: skip
    made.add_argument("--results", help="results folder, instead of that of the config")
    cli.add_launcher(made)
    made.add_argument(
        "--time-limit", type=cli.seconds, default=10.0, metavar="SECONDS",
        help="for each section; all are looked at side by side",
    )  # fmt: skip
    made.add_argument(
        "--clear-quarantine", nargs="?", const="", metavar="UUID",
        help="take this device, or all, out of quarantine for the results folder; then end",
    )  # fmt: skip
    made.add_argument("--json", action="store_true", help="write JSON, for programs")
    return made


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that what it started is ended
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        sys.exit(main(arguments().parse_args()))
    except KeyboardInterrupt:
        sys.exit(130)
