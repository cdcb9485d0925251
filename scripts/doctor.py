"""Say what would run on this machine and what is missing. It changes nothing and kills nothing."""

import os
import shutil
import signal
import sys
from argparse import Namespace
from pathlib import Path

try:
    from shardwise import cli
    from shardwise.doctor import report
    from shardwise.processes import contain, environment
except ImportError as error:  # say what is missing, without a traceback
    sys.stderr.write(f"{error}: run make install first\n")
    sys.exit(2)


def main(options: Namespace) -> int:
    """Look at everything, write the report, and return the exit code."""
    environment.clear_stray()
    contain.adopt()
    try:
        checks = report.sections(options.configfile, options.results, options.launcher)
        found = report.look(checks, min(options.time_limit, 1e6))
    finally:  # what it has started itself, and nothing else, is ended
        contain.sweep()
    width = min(120, shutil.get_terminal_size((100, 24)).columns)
    sys.stdout.reconfigure(errors="replace")  # names of any alphabet
    lines = [report.to_json(found)] if options.json else report.to_text(found, width)
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()
    return report.verdict(found)["exit_code"]


if __name__ == "__main__":
    parser = cli.parser(__doc__)
    parser.epilog = (
        "Exit codes: 0 the main job can run here; 2 something has to be installed or changed "
        "first; 75 try again (devices busy or lost). The keys of --json are in docs/doctor.md."
    )
    add, words = parser.add_argument, "config files for results and backend; else config.yaml"
    add("--configfile", nargs="+", type=Path, metavar="FILE", help=words)
    add("--results", help="results folder, instead of that of the config")
    cli.add_launcher(parser)
    words = "limit of each section; all run side by side"
    add("--time-limit", type=cli.seconds, default=10.0, metavar="SECONDS", help=words)
    add("--json", action="store_true", help="write JSON, for programs")
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that what it started is ended
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        os._exit(main(parser.parse_args()))  # what hangs in the kernel is not waited for
    except KeyboardInterrupt:
        sys.exit(130)
