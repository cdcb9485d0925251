"""Watch a run from any shell that sees its results folder, while its jobs run anywhere.

In a terminal it shows what is done, running, failed and waiting, the rate, the time left, and what
each device does. In a pipe it writes a line when something has changed. It changes nothing, asks no
scheduler, waits for a run that has not begun, and ends with the run.
"""

import os
import sys
from argparse import Namespace

from shardwise import cli
from shardwise.observe import watch
from shardwise.observe.folder import Observer
from shardwise.plan import config


def main(options: Namespace) -> int:
    """Watch, and give the exit code."""
    named = options.configfile, options.results
    try:
        if options.once:
            return watch.show_once(Observer(config.existing_folder(*named)), options.json)
        observer = Observer(config.folder_of_run(*named))
        if options.listen is not None:
            from shardwise.observe import metrics  # here: most watches need no server

            server = metrics.serve(lambda: observer.last, *options.listen)
            cli.log.info("metrics: http://%s:%d/metrics", options.listen[0], server.server_port)
        stay = options.listen is not None
        return watch.follow(observer, options.json, options.interval, stay)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader has seen enough; Python would complain at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    parser = cli.parser(__doc__)
    parser.epilog = (
        "Exit codes with --once: 0 all is done; 75 unfinished, and nothing has failed; 3 a shard "
        "or a stage has failed, or files are damaged: you have to act; 2 no results folder. "
        "Without --once the same, once the run has ended; 130 you typed Ctrl-C."
    )
    cli.add_results(parser)
    add = parser.add_argument
    add("--once", action="store_true", help="show one look as plain text, then end")
    add("--json", action="store_true", help="one JSON object per look, each on a line")
    words = "pause between two looks, at least; default: 2, in a pipe 10"
    add("--interval", type=cli.seconds, metavar="SECONDS", help=words)
    words = "serve /metrics as well, also after the end of the run; without HOST to this machine "
    words += "alone, with port 0 on any free port"
    add("--listen", type=cli.address, metavar="[HOST:]PORT", help=words)
    cli.run(main, parser)
