"""Multiply the matrices of all shards that have no product yet: start workers, and wait for them.

If a shard fails, the others still finish, and the last lines name those that failed.
"""

from pathlib import Path

from shardwise import cli
from shardwise.work import options
from shardwise.work.rounds import RETRIES

if __name__ == "__main__":
    arguments = cli.parser(__doc__)
    cli.add_plan(arguments)
    words = "who computes: a worker on each GPU of this machine, or one on its CPU (pool); the "
    words += "tasks of an array job, which this command submits and waits for (array); MPI ranks"
    add = arguments.add_argument
    add("--dispatch", choices=("pool", "array", "mpi"), default="pool", help=words)
    words = "tries of a shard after its first; a shard that ended with 1, 2 or 3 is not tried again"
    add("--retries", type=cli.natural, default=RETRIES, metavar="N", help=words)
    words = "run time that the job asked for: shards that do not fit into it are left to "
    words += "the next job; default: what the scheduler says"
    add("--run-time", type=cli.seconds, metavar="SECONDS", help=words)
    cli.add_task(arguments)

    add = arguments.add_argument_group("with --dispatch pool").add_argument
    words = "most GPUs to use; default, also with 0: all that the scheduler or "
    words += "CUDA_VISIBLE_DEVICES names, else all of this machine"
    add("--devices", type=cli.natural, metavar="N", help=words)

    group = arguments.add_argument_group("with --dispatch mpi")
    words = "a rank on each GPU (device, the default), or a rank on each node that "
    words += "works on all its GPUs"
    group.add_argument("--workers", choices=("device", "node"), help=words)
    cli.add_ranks(group, "one for each GPU of this machine, with --workers node one")
    arguments.set_defaults(launcher=None)  # so that `options.run` sees whether it is given

    add = arguments.add_argument_group("with --dispatch array").add_argument
    words = "tasks that share the shards; default: one per shard, 1,000 at most"
    add("--array-tasks", type=cli.positive, metavar="N", help=words)
    words = "most tasks that run at once; default: as many as the scheduler lets run"
    add("--array-limit", type=cli.positive, metavar="N", help=words)
    words = "what a task asks the scheduler for; snakemake writes it from the profile"
    add("--request", type=Path, metavar="FILE", help=words)

    words = "be one of the ranks that this command starts, for a round of claims"
    arguments.add_argument("--round", metavar="NAME", help=words)
    cli.run(options.run, arguments)
