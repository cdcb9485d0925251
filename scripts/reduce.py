"""Sum all products with MPI; the command starts its ranks itself.

Under a launcher of your own it is one of the ranks: mpiexec -n 2 python -m mpi4py scripts/reduce.py
"""

from argparse import Namespace
from typing import Any

from shardwise import cli, launch


def ranks(options: Namespace) -> Any:
    """The MPI of a rank; in a process that is none yet, start the ranks instead."""
    options.ranks = options.ranks or launch.default_ranks()
    launch.relaunch(options.ranks, options.launcher)
    from mpi4py import MPI  # only here: whoever imports it is a rank

    return MPI


def main(options: Namespace) -> None:
    """Sum the products of the ledger's shards."""
    from mpi4py import MPI  # as above
    from shardwise import reduce  # after MPI: a rank that fails here then ends the others

    comm = MPI.COMM_WORLD
    reduce.check_ranks(comm, options.ranks or comm.size)
    plan = reduce.run(comm, options.plan, options.statistics)
    if comm.rank == 0:
        cli.log.info("%s: the sum of %d matrices", plan.results.root, plan.problem.matrices)


if __name__ == "__main__":
    arguments = cli.parser(__doc__)
    cli.add_plan(arguments)
    cli.add_ranks(arguments)
    arguments.add_argument(
        "--statistics", nargs="+", choices=["sum", "mean"], default=["sum"], help="what to write"
    )
    cli.run(main, arguments, mpi=ranks)
