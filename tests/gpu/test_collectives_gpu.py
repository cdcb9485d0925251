"""The collectives on arrays of a device, in a world of one rank."""

import pytest
from shardwise.reduce import collectives


@pytest.fixture
def comm():
    """A communicator of this process alone."""
    from mpi4py import MPI

    return MPI.COMM_SELF


@pytest.mark.parametrize("dtype", [*collectives.FLOATS, *collectives.INTEGERS])
def test_sums_stay_on_the_device(xp, comm, dtype):
    """A sum over one rank is the array itself, a new one of the same kind, in any order."""
    array = xp.arange(24).reshape(2, 3, 4).astype(dtype)
    for laid_out in (array, array.T, array[:, ::2], array[0, 0, 0], array[:0]):
        found = collectives.total(comm, laid_out)
        assert isinstance(found, xp.ndarray)
        assert (found.dtype, found.shape) == (laid_out.dtype, laid_out.shape)
        assert (found == laid_out).all()
        assert not xp.may_share_memory(found, array)


def test_averages_and_broadcasts_take_arrays_of_the_device(xp, comm):
    """Several dtypes and orders, divided by the count; the only rank's broadcast changes none."""
    arrays = [xp.ones((3, 4), "float32").T, xp.full((2, 6), 3.0)[:, ::2], xp.ones((), "float16")]
    found = collectives.average(comm, arrays, 4)
    assert all(isinstance(array, xp.ndarray) for array in found)
    assert [array.dtype.name for array in found] == ["float32", "float64", "float16"]
    for array, expected in zip(found, (0.25, 0.75, 0.25), strict=True):
        assert (array == expected).all()
    collectives.broadcast(comm, arrays)
    assert (arrays[1] == 3).all()
