"""Watch a run from any shell that sees its results folder, while its jobs run anywhere.

In a terminal it redraws in place: what is done, running, failed and waiting, how fast, the time
left, what each device does. Keys: q ends it. In a pipe it writes a line when something has changed.
It changes nothing in the folder, asks no scheduler, waits for a run that has not begun, and ends
with the run.
"""

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from contextlib import ExitStack

from shardwise import cli
from shardwise.observe import pace, watch
from shardwise.observe.folder import Observer
from shardwise.plan import config

_INTERRUPTED = 130


def main(options: Namespace) -> int:
    """Watch, and give the exit code."""
    code = 0
    try:
        if not options.once:  # a run that has not begun is waited for
            root = config.folder_of_run(options.configfile, options.results)
            return _follow(Observer(root), options)
        root = config.existing_folder(options.configfile, options.results)
        look = pace.look(Observer(root).look())
        code = look.code
        if options.json:
            watch.Json().show(look)
        else:
            watch.snapshot(look)
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except BrokenPipeError:  # the reader has seen enough; Python would complain at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _follow(observer: Observer, options: Namespace) -> int:
    with ExitStack() as running:
        if options.listen:
            from shardwise.observe import endpoint  # here: who only looks needs no server

            host, port = options.listen
            own = Observer(observer.results.root)
            port = running.enter_context(endpoint.serve(own, host, port))
            cli.log.info("metrics: http://%s:%d/metrics", host, port)
        view = (
            watch.Json() if options.json
            else watch.InPlace() if watch.capable() else watch.Lines()
        )  # fmt: skip
        watch.follow(observer, view, options.interval, stay=options.listen is not None)
    return 0


def address(text: str) -> tuple[str, int]:
    """``[HOST:]PORT``, as `argparse` reads it; without a host this machine alone is served."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise ArgumentTypeError(f"{text} is not PORT or HOST:PORT, such as 9500 or 0.0.0.0:9500")
    return host or "127.0.0.1", int(port)


def arguments() -> ArgumentParser:
    """The command line."""
    made = cli.parser(__doc__)
    made.epilog = (
        "Exit codes with --once: 0 all is done; 75 unfinished, and nothing has failed; 3 a shard "
        "or a stage has failed, or files are damaged: somebody has to act; 2 no results folder. "
        "Without --once: 0 the run has ended well, or the user has left."
    )
    cli.add_results(made)
    made.add_argument("--once", action="store_true", help="one look, as plain text, and end")
    made.add_argument("--json", action="store_true", help="one JSON object a look, a line each")
    made.add_argument(
        "--interval", type=cli.seconds, default=2.0, metavar="SECONDS",
        help="time between two looks; longer where a look at the folder takes long",
    )  # fmt: skip
    made.add_argument(
        "--listen", type=address, metavar="[HOST:]PORT",
        help="serve the metrics of the run at /metrics meanwhile, to a Prometheus server; without "
        "HOST to this machine alone, with port 0 on any that is free. It then goes on after the "
        "end of the run",
    )  # fmt: skip
    return made


if __name__ == "__main__":
    cli.run(main, arguments())
