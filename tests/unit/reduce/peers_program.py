"""What the ranks of test_peers do: one case each, named on the command line."""

import os
import signal
import sys
import time

from mpi4py import MPI
from shardwise.errors import InputError, IntegrityError, ShardwiseError
from shardwise.reduce.peers import Peers


def lowest(peers: Peers) -> None:
    """Two ranks fail in a common step: all raise what the lower one says."""

    def work() -> None:
        if peers.rank:
            raise IntegrityError(f"rank {peers.rank} found damage")

    try:
        peers.agree(work, "a step")
    except IntegrityError as error:
        sys.stdout.write(f"{peers.rank}: {error}\n")


def alone(peers: Peers) -> None:
    """The last rank fails while the others wait for it."""
    try:
        with peers.sharing_errors():
            if peers.rank == peers.size - 1:
                raise InputError("only here")
            peers.receive(peers.size - 1)
    except ShardwiseError as error:
        sys.stdout.write(f"{peers.rank}: {type(error).__name__} {error}\n")
        sys.stdout.flush()
        sys.exit(error.exit_code)


def disk(peers: Peers) -> None:
    """An error of the disk becomes one that can be tried again."""
    try:
        with peers.sharing_errors():
            if peers.rank == 0:
                raise OSError(5, "broken disk")
            while True:
                peers.beat()
                time.sleep(0.01)
    except ShardwiseError as error:
        sys.exit(error.exit_code)


def stopped(peers: Peers) -> None:
    """One rank stands still; the others wait for it."""
    if peers.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    peers.agree(lambda: None, "a step")


def stuck(peers: Peers) -> None:
    """One rank waits for a file for ever, and gives signs of life all the same."""
    if peers.rank == 1:
        peers.during(lambda: time.sleep(1000), "a file that never comes")
    peers.agree(lambda: None, "a step")


def killed(peers: Peers) -> None:
    """One rank is killed; the others wait for it."""
    if peers.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    peers.agree(lambda: None, "a step")


def patient(peers: Peers) -> None:
    """One rank works for longer than the limit, and says that it lives."""
    if peers.rank == 1:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            peers.beat()
            time.sleep(0.01)
    peers.agree(lambda: None, "a step")


if __name__ == "__main__":
    case, limit = sys.argv[1], float(sys.argv[2])
    world = Peers(MPI.COMM_WORLD, limit)
    globals()[case](world)
    if case == "patient":
        world.close()
