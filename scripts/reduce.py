"""Sum all products with MPI; the command starts its ranks itself.

Under a launcher of your own it is one of the ranks: mpiexec -n 2 python -m mpi4py scripts/reduce.py
"""

from argparse import Namespace

from shardwise import cli
from shardwise.files.paths import STATISTICS
from shardwise.mpi import launch


def main(options: Namespace) -> None:
    """Reduce the products of the ledger's shards."""
    from shardwise.reduce import job  # after MPI: a rank that fails here then ends the others

    comm = launch.get_world(options.ranks, "reduce")
    plan = job.run(comm, options.plan, options.statistics)
    if comm.rank == 0:
        named = ", ".join(options.statistics)
        cli.log.info("%s: %s of %d matrices", plan.results.root, named, plan.problem.matrices)


if __name__ == "__main__":
    arguments = cli.parser(__doc__)
    cli.add_plan(arguments)
    cli.add_ranks(arguments)
    words = f"what to write: {', '.join(STATISTICS)} of all products"
    arguments.add_argument(
        "--statistics", nargs="+", choices=STATISTICS, default=["sum"], metavar="NAME", help=words
    )
    cli.run(main, arguments, mpi=launch.start_ranks)
