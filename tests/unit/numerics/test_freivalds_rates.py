"""Freivalds' check by the means of its benchmark: no false alarm of any kind, nothing gross missed.

`benchmarks/proof.py` prints the same with many more products: docs/verification.md.
"""

import numpy as np
import pytest
from shardwise.numerics.tolerances import CLOSER_LOOK

from tests.factories import FLOATS
from tests.workspace import REPO

WRONG_ROWS = (
    "row lost", "tile lost", "tile of another", "all zero", "swapped matrix", "stale slab",
    "transposed",
)  # fmt: skip


@pytest.fixture
def measured(monkeypatch):
    """The benchmark, as a module."""
    monkeypatch.syspath_prepend(REPO / "benchmarks")
    import proof

    return proof


@pytest.mark.parametrize(
    ("dtype", "group"),
    [(dtype, None) for dtype in (*FLOATS, "int8", "int16", "int32", "int64")]
    + [(dtype, 1) for dtype in CLOSER_LOOK],
)
def test_no_honest_product_is_refused(measured, dtype, group):
    """All kinds of numbers, scales, shapes up to 128 and products pass, and none is left out."""
    budget = measured.harness.Budget(1000)  # minutes, which it never takes
    found = measured.try_honest(np, dtype, "small", 100, budget, group)
    assert sum(map(len, found.values())) >= 100
    assert max(max(ratios) for ratios in found.values()) <= 1
    kinds = measured.honest.INTEGER_KINDS if "int" in dtype else measured.honest.KINDS
    assert found.keys() == set(kinds)


@pytest.mark.parametrize(
    ("dtype", "dim"), [*((dtype, 24) for dtype in FLOATS), ("float16", 64), ("float32", 64)]
)
def test_wrong_products_are_seen(measured, dtype, dim):
    """One element off by twice the tolerance, and each kind of damage larger than that, is seen."""
    budget = measured.harness.Budget(1000)
    elements, bits, kinds, sizes = measured.detect(np, dtype, dim, 40, budget)
    assert elements.tried() >= 40
    assert elements.rate(("row", 2.0)) == 1
    assert elements.rate(("row", 0.5)) == (1 if dtype in CLOSER_LOOK else 0)
    closely = elements.rate(("element", 0.5))
    # The product's own rounding to float16 comes on top, and again as the error is added.
    assert closely is None if dtype not in CLOSER_LOOK else closely <= 0.05 * (dtype == "float16")
    for kind in WRONG_ROWS:
        assert kinds.rate(kind) == 1, kind
    assert kinds.rate("less precise") == (None if dtype == "float16" else 1)
    assert bits.rate(0) == 0
    assert bits.rate(np.finfo(dtype).bits - 2) == 1  # the highest bit of the exponent
    assert 0 < sizes["row"][0] < 1
