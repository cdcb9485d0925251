"""Freivalds' check on NumPy; tests/gpu/test_proof_gpu.py tests what NumPy and cupy share.

`benchmarks/proof.py` measures the same rates for many more products: see docs/verification.md.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shardwise.numerics import end_to_end
from shardwise.numerics.tolerances import CLOSER_LOOK
from shardwise.plan.problem import takes_b
from shardwise.records import receipts

from tests.factories import FLOATS, PRODUCTS, noise, wide
from tests.kernels import checker, multiplied, problem_of
from tests.tensor_cores import Cupy
from tests.workspace import REPO


@settings(max_examples=150)
@given(
    st.sampled_from([*FLOATS, "float32 as tf32x3"]),
    st.sampled_from(PRODUCTS),
    st.integers(1, 40),
    st.integers(-1074, 1000),
    st.integers(-1074, 1000),
    st.integers(0, 2**32),
)
def test_honest_products_of_any_size_pass(dtype, product, d, one, other, seed):
    """If finite, even of subnormal factors or near the largest number; their sum is proven too.

    In double precision the check itself overflows, and underflows, near the ends of the range.
    """
    dtype, _, precision = dtype.partition(" as ")
    kind = "complex128" if "complex" in dtype else "float64"
    part = 0.5 if dtype == kind else np.finfo(dtype).maxexp / 1024  # of its exponents
    with np.errstate(all="ignore"):
        left = (noise((3, d, d), kind, seed) * 2.0 ** (one * part)).astype(dtype)
        right = (noise((3, d, d), kind, seed + 1) * 2.0 ** (other * part)).astype(dtype)
        own = right if takes_b(product) else None
        xp = Cupy() if precision else np
        result, compute = multiplied(xp, product, left, own, precision)
    if not (np.isfinite(left).all() and np.isfinite(result).all()):
        return
    check, problem = checker(np, product, left, own, compute, seed), problem_of(product, left, own)
    assert (check.check(left, own, result) <= 1).all()
    with np.errstate(all="ignore"):
        contributions, total = check.forms.sum(axis=1), wide(result).sum(axis=0)
    tolerance = end_to_end.product_bound(problem, contributions, 3, check.bound)
    receipt = SimpleNamespace(witness=receipts.witness(contributions, tolerance))
    form = end_to_end.SumForm((d, d), problem.sum_dtype)
    form.add(total.reshape(-1), 0)
    assert receipts.compare_sum(problem, [receipt], form.value()) <= 1


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
