"""What several ranks check of the collectives together, for test_collectives.py.

mpiexec -n 3 python -m mpi4py tests/unit/reduce/collective_checks.py FOLDER [CHECK ...]

Each rank runs each check on COMM_SELF, COMM_WORLD, a duplicate, and halves with their ranks in
reverse order, and then names it in FOLDER/RANK. A check that fails ends all ranks.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from shardwise.errors import InputError
from shardwise.reduce import collectives
from shardwise.reduce.collectives import FLOATS, INTEGERS

SHAPES = ((), (3, 0), (2, 3, 4))
PRECISION = {"float16": 1e-3, "float32": 1e-6, "complex64": 1e-6}


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
    """The same array in several memory orders."""
    strided = np.zeros((*array.shape, 2), array.dtype)[..., 1]
    strided[...] = array
    return array, np.array(array, order="F"), strided


def added(comm, shape, dtype, seed=0):
    """The sum of the arrays of all ranks, in as many digits as there are."""
    wide = {"f": "float64", "c": "complex128"}.get(np.dtype(dtype).kind, dtype)
    return sum(own(rank, shape, dtype, seed).astype(wide) for rank in range(comm.size))


def close(comm, found, expected, dtype):
    """Assert shape, dtype, the value up to rounding, and the same bits on all ranks."""
    assert (found.shape, found.dtype) == (np.shape(expected), np.dtype(dtype))
    if found.dtype.kind in "iu":
        assert np.array_equal(found, expected)
    np.testing.assert_allclose(found, expected, rtol=PRECISION.get(dtype, 1e-14), atol=1e-3)
    assert len(set(comm.allgather(found.tobytes()))) == 1


def refused(comm, told, call, *arguments):
    """Assert that every rank is refused, and that the ranks go on together."""
    with pytest.raises(InputError) as caught:
        call(comm, *arguments)
    assert any(told in message for message in comm.allgather(str(caught.value)))
    assert collectives.total(comm, np.int64(1)) == comm.size


def check_totals(comm):
    """Every dtype, shape and order: added in float64, and rounded once."""
    for dtype in (*FLOATS, *INTEGERS):
        for shape in SHAPES:
            for array in laid_out(own(comm.rank, shape, dtype)):
                before = array.copy()
                found = collectives.total(comm, array)
                close(comm, found, added(comm, shape, dtype), dtype)
                assert not np.may_share_memory(found, array)
                assert np.array_equal(array, before)


def check_sums_are_not_formed_in_the_dtype(comm):
    """What cancels in float64 is not lost in float16, and a sum that fits int8 is exact."""
    if comm.size < 3:
        return
    big = np.array([30000.0, 0.25], "float16") * [(1, 1, -2)[comm.rank] if comm.rank < 3 else 0, 1]
    found = collectives.total(comm, big.astype("float16"))
    assert found.tolist() == [0, comm.size / 4]
    share = (100, 100, -100)[comm.rank] if comm.rank < 3 else 0
    assert collectives.total(comm, np.array([share], "int8")) == [100]


def check_integers(comm):
    """Sums of integers up to the limits of their dtype are exact, and refused beyond."""
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


def check_special_floats(comm):
    """NaN, infinities and overflow are results, without warnings."""
    for dtype in FLOATS:
        array = np.array([np.nan, np.inf, 1, 0], dtype)
        array[3] = np.finfo(dtype).max
        found = collectives.total(comm, array)
        assert np.isnan(found[0])
        assert found[1:3].tolist() == [np.inf, comm.size]
        assert np.isinf(found[3]) == (comm.size > 1)


def check_averages(comm):
    """Arrays of several dtypes and orders are averaged with each rank's weight."""
    mixed = [("float32", (3, 4)), ("float64", ()), ("float32", (0, 2)), ("float16", (5,)),
             ("float32", (2, 3, 2)), ("complex64", (3,))]  # fmt: skip
    mine = [
        laid_out(own(comm.rank, shape, dtype, seed))[seed % 3]
        for seed, (dtype, shape) in enumerate(mixed)
    ]
    unequal = [3 * rank for rank in range(comm.size - 1)] + [4]
    for counts in ([1] * comm.size, unequal):
        found = collectives.average(comm, mine, counts[comm.rank])
        for seed, (array, (dtype, shape)) in enumerate(zip(found, mixed, strict=True)):
            close(comm, array, added(comm, shape, dtype, seed) / sum(counts), dtype)
    assert collectives.average(comm, []) == []


def check_broadcasts(comm):
    """Every rank has the arrays of the root, whichever it is, bit for bit in its own order."""
    for root in range(comm.size):
        for dtype in ("bool", *FLOATS, *INTEGERS):
            mine = [
                laid_out(own(comm.rank, shape, dtype, root))[place % 3]
                for place, shape in enumerate(SHAPES)
            ]
            for array in mine:
                array.flags.writeable = comm.rank != root
            collectives.broadcast(comm, mine, root)
            for found, shape in zip(mine, SHAPES, strict=True):
                assert found.tobytes() == own(root, shape, dtype, root).tobytes()


def check_what_cannot_be_is_refused(comm):
    """Dtypes that would not stay, roots and counts that cannot be."""
    for dtype in ("bool", "datetime64[s]", "object", "S3"):
        refused(comm, "allowed are float16, float32", collectives.total, np.zeros(3, dtype))
    refused(comm, "array 1 is of", collectives.average, [np.zeros(2), np.zeros(3, "int32")])
    refused(comm, "allowed are bool, float16", collectives.broadcast, [np.zeros(3, object)])
    for root in (-1, comm.size):
        refused(comm, f"root is {root}; it must be 0 to", collectives.broadcast, [], root)
    refused(comm, "it must be 0 or more", collectives.average, [np.zeros(2)], -1)
    refused(comm, "the counts of all ranks are 0", collectives.average, [np.zeros(2)], 0)


def check_mismatches_are_refused(comm):
    """Where one rank differs, every rank is refused with nothing changed, and none waits."""
    if comm.size == 1:
        return
    last = comm.size - 1
    odd = comm.rank == last
    told = f"rank {last} calls something else than rank 0"
    for shape, dtype in ((2, "f8"), (1, "f4"), (1, ">f8")):
        array = np.zeros(shape, dtype) if odd else np.zeros(1)
        refused(comm, told, collectives.total, array)
    arrays = [np.zeros(1), np.zeros(2), np.zeros(3)]
    for call in (collectives.average, collectives.broadcast):
        refused(comm, told, call, arrays[:2] if odd else arrays)
    refused(comm, told, collectives.broadcast, arrays, int(odd))
    calls = collectives.average, collectives.broadcast
    refused(comm, told, calls[odd], arrays)
    arrays[1].flags.writeable = not odd
    refused(comm, "array 1 cannot be written to", collectives.broadcast, arrays)
    refused(comm, f"rank {last} cannot take part", collectives.average, arrays, -7 if odd else 1)
    assert not any(array.any() for array in arrays)


def large_counts(comm):
    """More than 2³¹ elements in one array; not a check, as it takes memory and time."""
    array = np.full(2**31 + 16, comm.rank + 1, np.int8)
    marks = [0, 2**31 - 1, 2**31, 2**31 + 15]
    array[marks] += np.array([1, 2, 3, 4], np.int8)
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
