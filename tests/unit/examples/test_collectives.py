"""The collectives of the data-parallel example on 1 to 4 ranks.

``mpiexec -n 3 python -m mpi4py`` runs this file as the program of each rank: all its checks, on
COMM_SELF, COMM_WORLD, a duplicate, and halves with their ranks in reverse order. A check that fails
ends all ranks.
"""

import os
import subprocess
import sys
from pathlib import Path

import collectives
import numpy as np
import pytest

from tests.factories import ROOT, SCRIPTS, nightly

FLOATS = ("float16", "float32", "float64")
SHAPES = ((), (3, 0), (2, 3, 4))


def own(rank, shape, dtype):
    """The array of a rank; every rank can make the arrays of all ranks."""
    return np.asarray(100 * np.random.default_rng(rank).standard_normal(shape)).astype(dtype)


def laid_out(array):
    """The same array in several memory orders."""
    strided = np.zeros((*array.shape, 2), array.dtype)[..., 1]
    strided[...] = array
    return [array.copy(), np.array(array, order="F"), strided]


def check_averages(comm):
    """All dtypes, shapes and orders, by each rank's count: added in float64, rounded once."""
    for counts in ([1] * comm.size, [*range(0, 3 * comm.size - 3, 3), 4]):
        mine, expected = [], []
        for dtype in FLOATS:
            for shape in SHAPES:
                total = sum(own(rank, shape, dtype).astype("f8") for rank in range(comm.size))
                mine += laid_out(own(comm.rank, shape, dtype))
                expected += 3 * [np.asarray(total / sum(counts)).astype(dtype)]
        found = collectives.average(comm, mine, counts[comm.rank])
        for array, mean in zip(found, expected, strict=True):
            assert (array.shape, array.dtype) == (mean.shape, mean.dtype)
            np.testing.assert_allclose(array, mean, rtol=2 * np.finfo(array.dtype).eps, atol=1e-13)
        assert not collectives.odd_ranks(comm, b"".join(array.tobytes() for array in found))
    assert collectives.average(comm, [], 1) == []


def check_broadcasts(comm):
    """Every rank has the arrays of rank 0, bit for bit in its own order."""
    for dtype in ("bool", "int64", "complex64", *FLOATS):
        for shape in SHAPES:
            mine = laid_out(own(comm.rank, shape, dtype))
            collectives.broadcast(comm, mine)
            assert [array.tobytes() for array in mine] == 3 * [own(0, shape, dtype).tobytes()]


def check_refusals(comm):
    """If one rank differs, or nothing can be averaged, every rank is refused and none waits."""
    zeros, average, broadcast = np.zeros(2), collectives.average, collectives.broadcast

    def refused(comm, told, call, *arguments):
        with pytest.raises(ValueError, match=told):
            call(comm, *arguments)
        comm.Barrier()  # the ranks go on together

    refused(comm, "is of int32; pass arrays of floats", average, [zeros, np.zeros(3, "int32")], 1)
    refused(comm, "the counts of all ranks are 0", average, [zeros], 0)
    if comm.size == 1:
        return
    last = comm.size - 1
    odd, told = comm.rank == last, f"rank {last} calls something else than rank 0"
    for other in (np.zeros(3), np.zeros(2, "f4"), np.zeros(2, ">f8"), np.zeros((2, 1))):
        refused(comm, told, average, [other if odd else zeros], 1)
        refused(comm, told, broadcast, [other if odd else zeros])
    refused(comm, told, broadcast, [zeros] if odd else [zeros, zeros])
    refused(comm, told, *((broadcast, [zeros]) if odd else (average, [zeros], 1)))


@pytest.mark.parametrize("ranks", [3, nightly(2), nightly(4)])
def test_ranks_agree(ranks):
    """Every rank passes every check on every communicator, also on one of a single rank."""
    mpiexec = str(Path(sys.executable).with_name("mpiexec"))
    line = [mpiexec, "-n", str(ranks), sys.executable, "-W", "error", "-m", "mpi4py", __file__]
    path = os.pathsep.join(map(str, (ROOT / "examples" / "data_parallel", ROOT, SCRIPTS)))
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["passed"] * ranks


if __name__ == "__main__":
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    for comm in (MPI.COMM_SELF, world, world.Dup(), world.Split(world.rank % 2, -world.rank)):
        for check in (check_averages, check_broadcasts, check_refusals):
            check(comm)
    sys.stdout.write("passed\n")
