"""What the ranks of test_peers do: one case each, named on the command line."""

import os
import signal
import sys
import time

import numpy as np
from mpi4py import MPI
from shardwise.errors import InputError, IntegrityError, ShardwiseError
from shardwise.reduce.peers import Peers


def exchange(peers: Peers) -> None:
    """Everything that works, in one world."""
    rank, size = peers.rank, peers.size
    assert peers.broadcast(np.arange(5, dtype=np.uint8) if rank == 0 else None).tolist() == [
        0, 1, 2, 3, 4,
    ]  # fmt: skip
    assert peers.broadcast(np.zeros(0, np.uint8) if rank == 0 else None).size == 0
    found = peers.xor(np.array([1 << rank, 255], np.uint8))
    assert found.tolist() == [(1 << size) - 1, 255 * (size % 2)]
    for begin, end in ((0, size), (0, 1), (1, size)):
        team, seen = range(begin, end), [[rank]]
        if rank not in team:
            continue

        def dump(seen: list = seen) -> list[np.ndarray]:
            return [np.array(part, np.int64) for part in seen]

        def merge(arrays: list[np.ndarray], seen: list = seen) -> None:
            seen += [array.tolist() for array in arrays]

        first = peers.merged(team, dump, merge)
        assert first == (rank == begin)
        if first:
            assert seen == [[other] for other in team]  # neighbours stay neighbours
    assert peers.agree(lambda: 7 + rank, "a number") == 7 + rank


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
    if case in ("exchange", "patient"):
        world.close()
