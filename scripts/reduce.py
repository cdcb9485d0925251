"""Sum all products with MPI; the command starts its ranks itself.

It continues from what a killed reduce has left in partial/ of the results folder.
Under a launcher of your own it is one of the ranks: mpiexec -n 2 python -m mpi4py scripts/reduce.py
"""

from argparse import Namespace
from typing import Any

from shardwise import cli
from shardwise.files.paths import STATISTICS
from shardwise.plan import memory
from shardwise.plan import plan as plans
from shardwise.reduce import launch, rank_limits


def main(options: Namespace) -> None:
    """Reduce the products of the ledger's shards."""
    from shardwise.reduce import job  # after MPI: a rank that fails here then ends the others

    comm = launch.get_world(options.ranks, "reduce")
    plan = job.run(comm, options.plan, options.statistics, options.time_limit, options.save_every)
    if comm.rank == 0:
        named = ", ".join(options.statistics)
        cli.log.info("%s: %s of %d matrices", plan.results.root, named, plan.problem.matrices)


def _ranks(options: Namespace) -> Any:
    """mpi4py's ``MPI`` of a rank; a process that is not a rank yet starts the ranks."""
    if (options.ranks or 0) > rank_limits.ALWAYS and not launch.is_rank():
        from shardwise.reduce import job  # here: starting ranks needs no NumPy

        work = job.most_ranks(plans.load(options.plan))
        machine = rank_limits.limit_by_machine(options.launcher)
        rank_limits.refuse_more(options.ranks, "--ranks", work, machine)
    return launch.start_ranks(options)


if __name__ == "__main__":
    arguments = cli.parser(__doc__)
    cli.add_plan(arguments)
    cli.add_ranks(arguments)
    add, words = arguments.add_argument, f"what to write: {', '.join(STATISTICS)} of all products"
    add("--statistics", nargs="+", choices=STATISTICS, default=["sum"], metavar="NAME", help=words)
    seconds = {"type": cli.seconds, "metavar": "SECONDS"}
    words = "how long a rank may give no sign of life, or wait for one file, before all ranks are "
    words += "ended with 75; inf: for ever"
    add("--time-limit", default=memory.REDUCE_LIMIT_SECONDS, help=words, **seconds)
    words = "how often unfinished work is written to partial/, where the next reduce finds it; "
    words += "inf: never"
    add("--save-every", default=memory.REDUCE_SAVE_SECONDS, help=words, **seconds)
    cli.run(main, arguments, mpi=_ranks)
