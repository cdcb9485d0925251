"""Sums by the tree: a GPU gives the bits of the CPU."""

import numpy as np
import pytest
from shardwise.errors import InputError
from shardwise.numerics.tree import TreeSum
from shardwise.plan.per_matrix import PerMatrix

from tests.factories import FLOATS, noise
from tests.gpu.conftest import needs_gpu
from tests.unit.numerics.test_tree import terms

pytestmark = needs_gpu
KINDS = (*FLOATS, "int64")


@pytest.mark.parametrize(("wild", "shape"), [
    (True, (1, 33, 31)), (False, (19, 7, 37)), (False, (64, 1, 1)), (True, (5000, 3, 2)),
])  # fmt: skip
@pytest.mark.parametrize(
    ("dtype", "weigh"), [*((kind, False) for kind in KINDS), *((kind, True) for kind in KINDS[:-1])]
)
def test_sums_are_those_of_the_cpu(cupy, dtype, weigh, shape, wild):
    """In batches that begin anywhere, added backwards, and merged with nodes from the CPU."""
    n, *matrix = shape
    stack, cut = terms(dtype, n, 5, wild, matrix[0] * matrix[1]).reshape(shape), n // 3
    per_matrix = PerMatrix(noise((n,)) if weigh else None)
    own, found, first = (TreeSum(xp, shape[1:], dtype, per_matrix) for xp in (np, cupy, np))
    with np.errstate(all="ignore"):
        own.add(stack, 0)
        first.add(stack[:cut], 0)
        for low in reversed(range(cut, n, 700)):
            found.add(cupy.asarray(stack[low : low + 700]), low)
        for node, array in first.nodes():
            found.put(node, cupy.asarray(array))
        assert found.values()[0].tobytes() == own.values()[0].tobytes()


@pytest.mark.parametrize("count", [1, 2, 64])
def test_integers_that_do_not_fit_are_refused(cupy, count):
    """Whether they overflow within a batch or between two."""
    total = TreeSum(cupy, (3,), "int64")
    for low in range(0, 64, count):
        total.add(cupy.full((count, 3), 2**57, "int64"), low)
    with pytest.raises(InputError, match="does not fit int64"):
        total.values()
    assert int(total.overflow[0])
