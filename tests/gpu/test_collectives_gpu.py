"""The collectives of the data-parallel example on arrays of a device, in a world of one rank."""

import collectives


def test_averages_and_broadcasts_stay_on_the_device(xp):
    """Several dtypes and orders, divided by the count; the only rank's broadcast changes none."""
    from mpi4py import MPI

    arrays = [xp.ones((3, 4), "float32").T, xp.full((2, 6), 3.0)[:, ::2], xp.ones((), "float16")]
    found = collectives.average(MPI.COMM_SELF, arrays, 4)
    assert all(isinstance(array, xp.ndarray) for array in found)
    assert [array.dtype.name for array in found] == ["float32", "float64", "float16"]
    for array, expected in zip(found, (0.25, 0.75, 0.25), strict=True):
        assert (array == expected).all()
    collectives.broadcast(MPI.COMM_SELF, arrays)
    assert (arrays[1] == 3).all()
