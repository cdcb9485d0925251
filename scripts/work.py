"""Be a worker: take a device, and compute shards until none is left or the run time is nearly up.

By hand it computes what is missing; `dispatch` and the tasks of an array start several that share.
"""

from shardwise import cli
from shardwise.work import options

if __name__ == "__main__":
    arguments = cli.parser(__doc__)
    cli.add_plan(arguments)
    cli.add_task(arguments)
    add = arguments.add_argument
    words = "run time that the job asked for: shards that do not fit into it are left to "
    words += "the next job; default: what the scheduler says"
    add("--run-time", type=cli.seconds, metavar="SECONDS", help=words)
    words = "compute shards of this round, a folder of claims; default: all that are missing"
    add("--round", metavar="NAME", help=words)
    add("--name", help="what its claims say of this worker")
    add("--seat", type=cli.natural, metavar="N", help="the GPU of this node to look at first")
    add("--parent", type=int, metavar="PID", help="end when this process does, which started it")
    add("--until", type=float, metavar="TIME", help="when this job is ended, in Unix time")
    cli.run(options.work, arguments)
