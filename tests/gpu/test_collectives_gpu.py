"""The collectives on arrays of a device, in a world of one rank."""

import numpy as np
import pytest
from shardwise import collectives


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


def test_averages_are_written_in_place(xp, comm):
    """Several dtypes and orders, divided by the count."""
    arrays = [xp.ones((3, 4), "float32").T, xp.full((2, 6), 3.0)[:, ::2], xp.ones((), "float16")]
    collectives.average(comm, arrays, 4, out=arrays)
    assert [array.dtype.name for array in arrays] == ["float32", "float64", "float16"]
    for array, expected in zip(arrays, (0.25, 0.75, 0.25), strict=True):
        assert (array == expected).all()


def test_statistics_and_broadcasts_take_arrays_of_the_device(xp, comm):
    """Statistics are those of NumPy; a broadcast from the only rank changes nothing."""
    array = xp.asarray(np.random.default_rng(0).standard_normal((30, 40)))
    found = collectives.statistics(comm, array)
    assert (found.count, found.argmax) == (1200, (0, int(array.argmax())))
    np.testing.assert_allclose([found.mean, found.std], [float(array.mean()), float(array.std())])
    before = array.copy()
    collectives.broadcast(comm, [array])
    assert (array == before).all()
