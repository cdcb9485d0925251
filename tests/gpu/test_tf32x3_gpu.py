"""float32 products by three products in tf32, on a GPU: the error."""

import numpy as np
import pytest
from shardwise.numerics import tolerances

from tests import factories
from tests.gpu.conftest import needs_gpu
from tests.kernels import checker, exactly, multiplied
from tests.tensor_cores import KINDS, numbers

pytestmark = needs_gpu


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize(("product", "shape"), [
    ("A @ A", (515, 515)), ("A.T @ A", (1100, 1030)), ("A @ A.T", (1030, 1100)),
    ("A.H @ A", (1100, 1030)), ("A @ A.H", (515, 700)), ("A @ B", (2050, 4100)),
    ("A.T @ B", (700, 515)), ("A.H @ B", (1100, 1030)),
])  # fmt: skip
def test_the_error_is_about_that_of_float32(cupy, product, shape, dtype, kind):
    """The largest error per sum of moduli is in bounds, and about 1.5 times float32's at most."""
    left = numbers(kind, (2, *shape), dtype)
    rows = factories.right_rows(product, *shape)
    right = numbers(kind, (2, rows, shape[0]), dtype, 1) if rows else None
    exact, moduli = exactly(product, left, right, cupy)
    errors = {}
    for precision in ("ieee", "tf32x3", "tf32"):
        found, compute = multiplied(cupy, product, left, right, precision)
        assert compute == (dtype if precision == "ieee" else precision)
        errors[precision] = float((abs(found - exact) / moduli).max())
    k = shape[1] if product.startswith("A @") else shape[0]
    assert errors["tf32x3"] <= tolerances.product_tolerance(k, 1, dtype, "tf32x3")[0], errors
    floor = 2.0**-18 if product == "A @ B" else 2.0**-20
    assert errors["tf32x3"] <= max(1.5 * errors["ieee"], floor), errors
    assert errors["tf32x3"] < errors["tf32"] / 2, errors


@pytest.mark.parametrize(("one", "other"), [(-112, 100), (-124, 120), (126, -120)])
def test_honest_products_pass_at_the_ends_of_the_range(cupy, one, other):
    """Low parts, then the numbers themselves, are subnormal: tensor cores must not flush them."""
    left, right = (
        (np.clip(factories.noise((3, 96, 96), seed=seed), -3, 3) * 2.0**e).astype("float32")
        for seed, e in ((1, one), (2, other))
    )
    found, compute = multiplied(cupy, "A @ B", left, right, "tf32x3")
    assert np.isfinite(found).all()
    check = checker(cupy, "A @ B", left, right, compute, 0, group=3)
    ratio = check.check(*(cupy.asarray(x) for x in (left, right, found))).get()
    assert (ratio <= 1.0).all(), ratio
