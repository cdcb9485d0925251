"""What several ranks check of the collectives together, for test_collectives.py.

mpiexec -n 3 python -m mpi4py tests/unit/collective_checks.py FOLDER [CHECK ...]

Each rank runs each check on COMM_SELF, COMM_WORLD, a duplicate, and halves with their ranks in
reverse order, and then names it in FOLDER/RANK. A check that fails ends all ranks.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from shardwise import collectives
from shardwise.collectives import FLOATS, INTEGERS
from shardwise.errors import InputError

SHAPES = ((), (0,), (3, 0), (7,), (4, 5), (2, 3, 4))
WIDE = {"f": "float64", "c": "complex128"}


class Device:
    """An array that NumPy cannot read, with the methods of cupy's that the collectives use."""

    __cuda_array_interface__ = None

    def __init__(self, array):
        self._array = array
        self.flags, self.shape, self.dtype = object(), array.shape, array.dtype

    def __array__(self, *_, **__):  # noqa: D105 - as in cupy
        raise TypeError("implicit conversion")

    def get(self):
        """A copy on the host."""
        return self._array.copy()

    def copy(self):
        """A copy on the device."""
        return Device(self._array.copy())

    def set(self, host):
        """Overwrite it with an array of the host."""
        assert (host.shape, host.dtype) == (self.shape, self.dtype)
        self._array[...] = host

    def __setitem__(self, key, value):  # noqa: D105 - as in cupy
        self._array[key] = value._array


def own(rank, shape, dtype, seed=0):
    """The array of a rank: every rank can make those of all."""
    random = np.random.default_rng([seed, rank])
    kind = np.dtype(dtype).kind
    if kind in "biu":
        return random.integers(0, 2 if kind == "b" else 20, shape).astype(dtype)
    numbers = random.standard_normal(shape)
    if kind == "c":
        numbers = numbers + 1j * random.standard_normal(shape)
    return np.asarray(numbers, dtype)


def laid_out(array):
    """The same array in several memory orders, and in the other byte order."""
    strided = np.zeros((*array.shape, 2), array.dtype)[..., 1]
    strided[...] = array
    return array, np.array(array, order="F"), strided, array.astype(array.dtype.newbyteorder())


def all_of(comm, shape, dtype):
    """The arrays of all ranks, in their order."""
    return [own(rank, shape, dtype) for rank in range(comm.size)]


def added(arrays, divisor=1):
    """What a sum has to be to the bit: one by one in float64, rounded once."""
    wide = WIDE.get(arrays[0].dtype.kind, arrays[0].dtype.name)
    result = arrays[0].astype(wide)
    for array in arrays[1:]:
        result = result + array
    return np.asarray(result / divisor if divisor != 1 else result).astype(arrays[0].dtype)


def same(found, expected):
    """Assert equal shapes, dtypes and bits."""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert found.tobytes() == expected.tobytes()


def refused(comm, told, call, *arguments, **options):
    """Assert that every rank is refused with one message, and that the ranks go on together."""
    with pytest.raises(InputError) as caught:
        call(comm, *arguments, **options)
    assert told in str(caught.value)
    assert len(set(comm.allgather(str(caught.value)))) == 1
    assert collectives.total(comm, np.int64(1)) == comm.size


def check_totals(comm):
    """Every dtype, shape and order: added in the order of the ranks, and rounded once."""
    for dtype in (*FLOATS, *INTEGERS):
        for shape in SHAPES:
            expected = added(all_of(comm, shape, dtype))
            for array in laid_out(own(comm.rank, shape, dtype)):
                same(collectives.total(comm, array), expected.astype(array.dtype))


def check_inputs_are_left_alone(comm):
    """Neither a sum nor a mean changes what it is given, nor shares its memory."""
    array = own(comm.rank, (5,), "float32")
    for call in (collectives.total, collectives.mean):
        result = call(comm, array)
        result[:] = 0
    (result,) = collectives.average(comm, [array])
    result[:] = 0
    same(array, own(comm.rank, (5,), "float32"))


def check_pieces(comm):
    """Arrays of many pieces, whose last is shorter, or of fewer elements than there are ranks."""
    whole = collectives._PIECE
    collectives._PIECE = 5
    try:
        for size in (1, 2, 5, 6, 23):
            for dtype in ("float16", "complex128", "int32"):
                arrays = all_of(comm, (size,), dtype)
                same(collectives.total(comm, arrays[comm.rank]), added(arrays))
    finally:
        collectives._PIECE = whole


def check_integers(comm):
    """Sums of integers up to the limits of their dtype are exact, also where they pass them."""
    for dtype in INTEGERS:
        limits = np.iinfo(dtype)
        for limit, step in ((limits.max, 1), (limits.min, -1)):
            if limit == 0:
                continue
            shares = [limit - step * (comm.size - 1), *[step] * (comm.size - 1)]
            array = np.array([shares[comm.rank], 1], dtype)
            assert collectives.total(comm, array).tolist() == [limit, comm.size]
            if comm.size > 1:
                array[0] = limit if comm.rank == 0 else step
                refused(comm, f"1 of 2 sums do not fit {dtype}", collectives.total, array)
            if comm.size > 2 and limits.min:  # too large on the way, but not in the end
                array[0] = 0 if comm.rank > 2 else (limit, step, -step)[comm.rank]
                assert collectives.total(comm, array)[0] == limit


def check_special_floats(comm):
    """NaN, infinities and overflow are results, without warnings."""
    for dtype in FLOATS:
        array = np.array([np.nan, np.inf, 1, 0], dtype)
        array[3] = np.finfo(dtype).max
        found = collectives.total(comm, array)
        assert np.isnan(found[0])
        assert found[1:3].tolist() == [np.inf, comm.size]
        assert np.isinf(found[3]) == (comm.size > 1)
        assert collectives.mean(comm, array)[2] == 1


def check_means(comm):
    """The mean of one array is its sum over the number of ranks, rounded once."""
    for dtype in FLOATS:
        arrays = all_of(comm, (4, 5), dtype)
        same(collectives.mean(comm, arrays[comm.rank]), added(arrays, comm.size))


def gradients(rank):
    """Arrays of several dtypes, shapes and orders."""
    mixed = ("float32", (3, 4)), ("float64", ()), ("float32", (0, 2)), ("float16", (5,))
    mixed += (("float32", (2, 3, 2)), ("complex64", (3,)))
    return [
        laid_out(own(rank, shape, dtype, seed))[seed % 3]
        for seed, (dtype, shape) in enumerate(mixed)
    ]


def check_averages(comm):
    """A list of arrays is averaged with each rank's weight, to new arrays, others, or in place."""
    of_all = [gradients(rank) for rank in range(comm.size)]
    plain = [added(list(arrays), comm.size) for arrays in zip(*of_all, strict=True)]
    counts = [3 * rank for rank in range(comm.size)]
    counts[-1] += 1
    weighted = [added(list(arrays), sum(counts)) for arrays in zip(*of_all, strict=True)]
    mine = of_all[comm.rank]
    for found, expected in zip(collectives.average(comm, mine), plain, strict=True):
        same(found, expected)
    out = [np.array(np.ones_like(array), order="F") for array in mine]
    assert all(
        a is b
        for a, b in zip(
            collectives.average(comm, mine, counts[comm.rank], out=out), out, strict=True
        )
    )
    for found, expected in zip(out, weighted, strict=True):
        same(found, expected)
    collectives.average(comm, mine, out=mine)
    for found, expected in zip(mine, plain, strict=True):
        same(found, expected)
    assert collectives.average(comm, []) == []


def check_broadcasts(comm):
    """Every rank has the arrays of the root, whichever it is, bit for bit in its own order."""
    for root in range(comm.size):
        for dtype in ("bool", *FLOATS, *INTEGERS):
            expected = [own(root, shape, dtype, root) for shape in SHAPES]
            mine = [
                laid_out(own(comm.rank, shape, dtype, root))[place % 3]
                for place, shape in enumerate(SHAPES)
            ]
            if comm.rank == root:
                for array in mine:
                    array.flags.writeable = False
            collectives.broadcast(comm, mine, root)
            for found, array in zip(mine, expected, strict=True):
                same(found, array)
        alone = own(comm.rank, (4, 5), "float64")
        for array in laid_out(alone):
            collectives.broadcast(comm, [array], root)
            same(array, own(root, (4, 5), "float64").astype(array.dtype))
    collectives.broadcast(comm, [])


def check_device_arrays(comm):
    """Arrays of a device go through the host and come back to the device."""
    arrays = all_of(comm, (2, 3), "float32")
    mine = Device(arrays[comm.rank].copy())
    for call, divisor in ((collectives.total, 1), (collectives.mean, comm.size)):
        found = call(comm, mine)
        assert isinstance(found, Device)
        same(found.get(), added(arrays, divisor))
    (found,) = collectives.average(comm, [mine])
    same(found.get(), added(arrays, comm.size))
    assert collectives.statistics(comm, mine) == collectives.statistics(comm, mine.get())
    collectives.average(comm, [mine], 2, out=[mine])
    same(mine.get(), added(arrays, 2 * comm.size))
    target = Device(np.full(3, comm.rank))
    collectives.broadcast(comm, [target], comm.size - 1)
    same(target.get(), np.full(3, comm.size - 1))


def close(found, arrays, of_std=1e-13):
    """Assert the statistics of all elements, from NumPy in extended precision."""
    flat = np.concatenate([array.reshape(-1) for array in arrays]).astype(np.longdouble)
    assert found.count == flat.size
    assert abs(found.sum - flat.sum()) <= 1e-14 * np.abs(flat).sum()
    assert abs(found.mean - flat.mean()) <= 1e-14 * np.abs(flat).mean()
    assert abs(found.std - flat.std()) <= of_std * flat.std()
    assert (found.min, found.max) == (flat.min(), flat.max())
    for (rank, index), extreme in ((found.argmin, found.min), (found.argmax, found.max)):
        assert arrays[rank].flat[index] == extreme


def check_statistics(comm):
    """All dtypes and orders, ranks of unequal shapes, chunks that do not fill up."""
    for dtype in ("bool", "float16", "float32", "float64", *INTEGERS):
        arrays = [own(rank, (3, 4 + rank), dtype) for rank in range(comm.size)]
        for array in laid_out(arrays[comm.rank]):
            found = collectives.statistics(comm, array)
            close(found, arrays)
            assert len(set(comm.allgather(repr(found)))) == 1
    size = 2 * collectives._CHUNK + 17
    arrays = [own(rank, (size + rank,), "float32") for rank in range(comm.size)]
    close(collectives.statistics(comm, arrays[comm.rank]), arrays)


def check_statistics_are_stable(comm):
    """A mean of 10⁹ deviations costs nine digits of the deviation, not all of them."""
    arrays = [1e9 + own(rank, (1000 + 500 * rank,), "float64") for rank in range(comm.size)]
    close(collectives.statistics(comm, arrays[comm.rank]), arrays, of_std=1e9 * 2**-53)


def check_extremes(comm):
    """Ties belong to the lowest rank and index; NaN is an extreme, and spoils the rest."""
    found = collectives.statistics(comm, np.ones((2, 2)))
    assert (found.argmin, found.argmax, found.std) == ((0, 0), (0, 0), 0)
    last = comm.size - 1
    array = np.array([[0.0, 1, 2], [2, 0, np.nan if comm.rank == last else 1]])
    found = collectives.statistics(comm, array)
    assert (found.argmin, found.argmax) == ((last, 5), (last, 5))
    assert all(np.isnan([found.sum, found.mean, found.std, found.min, found.max]))
    array[1, 2] = np.inf
    found = collectives.statistics(comm, array)
    assert (found.sum, found.mean, found.max) == (np.inf, np.inf, np.inf)
    assert np.isnan(found.std)
    assert (found.argmin, found.argmax) == ((0, 0), (0, 5))


def check_empty_ranks(comm):
    """Ranks without elements count for nothing; if all are, there is nothing to tell."""
    array = own(0, (6,), "float64") if comm.rank == comm.size - 1 else np.zeros((0, 3), "int8")
    found = collectives.statistics(comm, array)
    assert found.argmin[0] == found.argmax[0] == comm.size - 1
    assert found.count == 6
    found = collectives.statistics(comm, np.zeros((3, 0)))
    assert (found.count, found.sum, found.argmin, found.argmax) == (0, 0, None, None)
    assert all(np.isnan([found.mean, found.std, found.min, found.max]))


def check_dtypes_are_refused(comm):
    """Whatever cannot keep its dtype is refused, with the dtypes that can."""
    many = ("bool", "datetime64[s]", "longdouble", "object", "S3")
    for dtype in many:
        refused(comm, "allowed are float16, float32", collectives.total, np.zeros(3, dtype))
    for dtype in (*many, "int32"):
        refused(comm, "allowed are float16, float32", collectives.mean, np.zeros(3, dtype))
        refused(comm, "array 1 is of", collectives.average, [np.zeros(2), np.zeros(3, dtype)])
    refused(comm, "allowed are bool, float16", collectives.broadcast, [np.zeros(3, object)])
    refused(comm, "allowed are bool, float16", collectives.statistics, np.zeros(3, complex))


def check_arguments_are_refused(comm):
    """Roots, counts and targets that cannot be."""
    arrays = [np.zeros(2), np.zeros(3)]
    for root in (-1, comm.size):
        refused(comm, f"root is {root}; it must be 0 to", collectives.broadcast, arrays, root)
    for count in (-1, 0, 0.5, None, 2**63):
        refused(comm, "each must be a whole number", collectives.average, arrays, count)
    call = collectives.average
    refused(comm, "there are 1 arrays for 2 results", call, arrays, out=arrays[:1])
    refused(comm, "must be of float64 (2,)", call, arrays, out=arrays[::-1])
    refused(comm, "cannot be written to", call, arrays, out=[arrays[0], [0.0] * 3])
    half = [array.astype("float32") for array in arrays]
    refused(comm, "it must be of float64", call, arrays, out=half)


def check_mismatches_are_refused(comm):
    """One rank that differs is named on every rank, and none is left waiting."""
    if comm.size == 1:
        return
    last = comm.size - 1
    odd = comm.rank == last
    refused(comm, f"rank {last} has float64 (2,)", collectives.total, np.zeros(2 if odd else 1))
    refused(
        comm,
        f"rank 0 has float64 (2,), rank {last} has float32 (2,)",
        collectives.mean,
        np.zeros(2, "float32" if odd else "float64"),
    )
    refused(
        comm,
        f"rank {last} has >f8 (2,)",
        collectives.total,
        np.zeros(2, ">f8" if odd else "<f8"),
    )
    arrays = [np.zeros(1), np.zeros(2), np.zeros(3)]
    told = f"array 2: rank 0 has float64 (3,), rank {last} has nothing"
    for call in (collectives.average, collectives.broadcast):
        refused(comm, told, call, arrays[:2] if odd else arrays)
    told = f"rank 0 calls broadcast from rank 0, rank {last} calls broadcast from rank 1"
    refused(comm, told, collectives.broadcast, arrays, int(odd))
    refused(comm, "rank 0 calls total", collectives.mean if odd else collectives.total, 1.0)
    whole = [array.copy() for array in arrays]
    whole[1].flags.writeable = not odd
    told = f"rank {last}: array 1 for the results cannot be written to"
    refused(comm, told, collectives.broadcast, whole)
    told = f"rank {last}: array 0 is of complex128 (2,)"
    refused(comm, told, collectives.statistics, np.zeros(2, complex if odd else float))
    told = "counts are [" + "1, " * last + "-1]"
    refused(comm, told, collectives.average, arrays, -7 if odd else 1)
    assert not any(array.any() for array in arrays)


def large_counts(comm):
    """More than 2³¹ elements in one array; not a check, as it takes memory and time."""
    array = np.full(2**31 + 16, comm.rank + 1, np.int8)
    marks = [0, 2**31 - 1, 2**31, 2**31 + 15]
    array[marks] += np.array([1, 2, 3, 4], np.int8)
    found = collectives.total(comm, array)
    expected = comm.size * (comm.size + 1) // 2
    assert found.size == array.size
    found -= expected  # in place: a comparison would take as much memory again
    assert found[marks].tolist() == [comm.size * n for n in (1, 2, 3, 4)]
    assert np.count_nonzero(found) == 4
    del found
    collectives.broadcast(comm, [array], comm.size - 1)
    array -= comm.size
    assert array[marks].tolist() == [1, 2, 3, 4]
    assert np.count_nonzero(array) == 4


CHECKS = [name for name in globals() if name.startswith("check_")]


def main(folder, *names):
    """Run the checks on every communicator."""
    world = MPI.COMM_WORLD
    halves = world.Split(world.rank % 2, -world.rank)
    comms = (MPI.COMM_SELF, world, world.Dup(), halves)
    for name in names or CHECKS:
        for comm in comms if name in CHECKS else (world,):
            globals()[name](comm)
        with open(Path(folder) / str(world.rank), "a") as file:
            file.write(f"{name}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
