"""Sum all products with MPI.

Start it with a launcher: mpiexec -n 2 python scripts/reduce.py --plan results/plan.tsv --ranks 2
"""

import sys
from argparse import Namespace
from pathlib import Path

from mpi4py import MPI
from shardwise import cli, reduce
from shardwise.problem import STATISTICS


def main(options: Namespace) -> None:
    """Sum the products of the ledger's shards."""
    comm = MPI.COMM_WORLD
    reduce.check_ranks(comm, options.ranks)
    plan = reduce.run(comm, options.plan, options.statistics)
    if comm.rank == 0:
        cli.log.info("%s: the sum of %d matrices", plan.results.root, plan.problem.matrices)


if __name__ == "__main__":
    arguments = cli.parser(__doc__)
    cli.add_plan(arguments)
    arguments.add_argument(
        "--ranks", type=int, default=MPI.COMM_WORLD.size, help="ranks that MPI must have"
    )
    arguments.add_argument(
        "--statistics", nargs="+", choices=STATISTICS, default=["sum"], help="what to write"
    )
    world = MPI.COMM_WORLD
    launcher = (str(Path(sys.executable).with_name("mpiexec")), "-n", str(world.size))
    cli.run(main, arguments, abort=world.Abort, announce=world.rank == 0, launcher=launcher)
