"""Binned sums: the same planes on the CPU and, where there is one, on a GPU."""

import numpy as np
import pytest
from shardwise.numerics.binned import BinnedSum
from shardwise.numerics.packed import Packing, unpack

from tests.gpu.conftest import to_host

KINDS = ("float16", "float32", "float64", "complex64", "complex128", "int64")
SHAPES = ((19, 7, 37), (1, 33, 31), (8, 1, 1), (3, 128, 129))


def any_bits(shape, dtype):
    """Numbers of all exponents, NaN, infinities and subnormals among them."""
    random = np.random.default_rng(5)
    count = np.dtype(dtype).itemsize * int(np.prod(shape))
    return np.frombuffer(random.bytes(count), dtype).reshape(shape)


def similar(shape, dtype):
    """Numbers of similar size, with ties, zeros and a few that are much larger."""
    random = np.random.default_rng(6)
    if dtype == "int64":
        return random.integers(-(2**63), 2**63 - 1, shape, endpoint=True)
    scales = random.choice([0.0, -0.0, 1.0, 2.0**-18, 2.0**-19, 2.0**13, 2.0**14], shape)
    return (random.standard_normal(shape).round(3) * scales).astype(dtype)


@pytest.mark.parametrize("make", [any_bits, similar])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", KINDS)
def test_planes_are_those_of_the_cpu(xp, dtype, shape, make):
    """A device that adds groups of the stack backwards ends with the bytes of one call here."""
    stack = make(shape, dtype)
    expected = BinnedSum(np, shape[1:], dtype)
    expected.add(stack)
    found = BinnedSum(xp, shape[1:], dtype)
    cut = len(stack) // 3
    for group in (stack[cut:][::-1], stack[:cut]):
        found.add(xp.asarray(np.ascontiguousarray(group)))
    assert to_host(xp, found.planes()).tobytes() == expected.planes().tobytes()
    assert packed_by(xp, found) == packed_by(np, expected)


def packed_by(xp, total):
    """The packing of a sum, and its words; a device leaves what lies behind them as it was."""
    planes = total.planes()
    most = 4 * planes.size + 3
    out = xp.full(most, 7, np.uint16)
    packing = Packing.of(to_host(xp, total.pack(out)))
    rows = to_host(xp, out)
    end = sum(packing.words) * planes[0].size
    assert (rows[end:] == 7).all()
    assert (unpack(rows[:end].reshape(-1, *planes.shape[1:]), packing) == to_host(xp, planes)).all()
    return packing, rows[:end].tobytes()


@pytest.mark.parametrize("numbers", [[0, 0, 0], [-1, -1, -1], [5, 5, 2**62], [-(2**63), 0, 1], [1]])
def test_integers_of_any_length_are_packed_alike(xp, numbers):
    """No words where all is zero or equal, one where that is all there is, and up to four."""
    one = np.array([numbers])
    totals = BinnedSum(np, (len(numbers),), "int64"), BinnedSum(xp, (len(numbers),), "int64")
    for total, stack in zip(totals, (one, xp.asarray(one)), strict=True):
        total.add(stack)
    assert packed_by(xp, totals[1]) == packed_by(np, totals[0])


def test_what_was_packed_outlives_the_sum(xp):
    """Words are a copy: later additions change the sum, not them."""
    stack = xp.asarray(similar((3, 700, 700), "float32"))
    total = BinnedSum(xp, (700, 700), "float32")
    total.add(stack)
    out = xp.empty(10 * 700 * 700, np.uint16)
    total.pack(out)
    before = to_host(xp, out).copy()
    total.add(stack)
    assert (to_host(xp, out) == before).all()
