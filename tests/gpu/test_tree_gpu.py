"""Sums by the tree: the same bits on the CPU and, if there is one, on a GPU."""

import numpy as np
import pytest
from shardwise.errors import InputError
from shardwise.numerics.tree import TreeSum
from shardwise.plan.per_matrix import PerMatrix

from tests.kernels import to_host

KINDS = ("float16", "float32", "float64", "complex64", "complex128", "int64")


def any_bits(shape, dtype):
    """Numbers of all exponents, NaN, infinities and subnormals among them; integers that fit."""
    random = np.random.default_rng(5)
    if dtype == "int64":
        return random.integers(-(2**50), 2**50, shape)
    count = np.dtype(dtype).itemsize * int(np.prod(shape))
    return np.frombuffer(random.bytes(count), dtype).reshape(shape)


def similar(shape, dtype):
    """Numbers of similar size, whose sums round."""
    random = np.random.default_rng(6)
    return (1000 * random.standard_normal(shape)).astype(dtype)


@pytest.mark.parametrize(("make", "shape"), [
    (any_bits, (1, 33, 31)), (similar, (19, 7, 37)), (similar, (64, 1, 1)),
    (any_bits, (5000, 3, 2)),
])  # fmt: skip
@pytest.mark.parametrize(
    ("dtype", "weigh"), [*((kind, False) for kind in KINDS), *((kind, True) for kind in KINDS[:-1])]
)
def test_sums_are_those_of_the_cpu(xp, dtype, weigh, shape, make):
    """In batches that begin anywhere, added backwards, and merged with nodes from the CPU."""
    stack, cut = make(shape, dtype), shape[0] // 3
    weights = similar(shape[:1], "float64") if weigh else None
    own, found, first = (TreeSum(a, shape[1:], dtype, PerMatrix(weights)) for a in (np, xp, np))
    with np.errstate(all="ignore"):
        for total, part in ((own, slice(None)), (first, slice(cut))):
            total.add(stack[part], 0)
        for low in reversed(range(cut, len(stack), 700)):
            found.add(xp.asarray(stack[low : low + 700]), low)
        for node, array in first.nodes():
            found.put(node, xp.asarray(array))
        assert found.values()[0].tobytes() == own.values()[0].tobytes()


@pytest.mark.parametrize("count", [1, 2, 64])
def test_integers_that_do_not_fit_are_refused(xp, count):
    """Whether they overflow within a batch or between two."""
    total = TreeSum(xp, (3,), "int64")
    for low in range(0, 64, count):
        total.add(xp.full((count, 3), 2**57, "int64"), low)
    with pytest.raises(InputError, match="does not fit int64"):
        total.values()
    assert int(to_host(xp, total.overflow)[0])
