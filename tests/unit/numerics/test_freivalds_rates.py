"""Freivalds' check, measured by its benchmark: no false alarm, and no gross error missed.

`benchmarks/proof.py` prints the same for many more products: see docs/verification.md.
"""

import numpy as np
import pytest
from shardwise.numerics.tolerances import CLOSER_LOOK

from tests.factories import FLOATS
from tests.workspace import REPO


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
    found = measured.try_honest(np, dtype, "d ≤ 128", 100, group)
    assert sum(map(len, found.values())) >= 100
    assert max(max(ratios) for ratios in found.values()) <= 1
    kinds = measured.cells.INTEGER_KINDS if "int" in dtype else measured.cells.KINDS
    assert found.keys() == set(kinds)


@pytest.mark.parametrize(
    ("dtype", "dim"), [*((dtype, 24) for dtype in FLOATS), ("float16", 64), ("float32", 64)]
)
def test_wrong_products_are_seen(measured, dtype, dim):
    """An element off by twice the tolerance is seen (float16: 7 in 10), and so is larger damage.

    Half a tolerance passes: of the element if it gets a closer look, else of its row.
    """
    seen, size = measured.detect(np, dtype, dim, 40)
    rates = {kind: np.mean(tried) for kind, tried in seen.items()}
    assert all(len(tried) >= 40 for tried in seen.values())
    for kind in ("row lost", "tile lost", "swapped", "transposed"):
        assert rates[kind] == 1, kind
    # float16 rounds the product itself, and again when the error is added.
    assert rates["2 ×"] >= (0.7 if dtype == "float16" else 1)
    assert max(rates["0.5 ×"], rates[0]) <= 0.05 * (dtype == "float16")
    assert rates.get("less precise") == (None if dtype == "float16" else 1)
    assert rates[np.finfo(dtype).bits - 2] == 1  # the highest bit of the exponent
    assert 0 < size < 1
