"""Freivalds' check on NumPy; tests/gpu/test_proof_gpu.py tests what NumPy and cupy share."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.numerics import end_to_end, loops, tolerances
from shardwise.plan.problem import takes_b

from tests.factories import PRODUCTS, REFERENCES, noise
from tests.kernels import checker, multiplied


def test_integers_are_checked_without_any_tolerance():
    """One unit in one element of large integers is found, though floats would not see it."""
    left = np.full((2, 4, 4), 2**30, "int64")
    product, compute = multiplied(np, "A @ B", left, left)
    product[1, 0, 0] += 1
    check = checker(np, "A @ B", left, left, compute)
    assert check.check(left, left, product).tolist() == [0, np.inf]


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("product", PRODUCTS)
def test_a_factor_that_is_not_as_it_is_written_is_found(product, dtype):
    """A result passes only as its own product, not as that of another transpose or conjugate."""
    left, right = noise((2, 9, 9), dtype), noise((2, 9, 9), dtype, 1)
    own = right if takes_b(product) else None
    check = checker(np, product, left, own, dtype)
    for other in PRODUCTS:
        found = check.check(left, own, REFERENCES[other](left, right))
        assert (found <= 1).all() if other == product else (found > 1).all(), other


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (7, 600), (600, 7)])
@pytest.mark.parametrize("transposed", [False, True])
def test_loops_multiply_as_numpy_does(dtype, shape, transposed):
    """Each element counts, also in a last row without a pair and in columns past one tile."""
    stack = noise((3, *shape), dtype)
    wide = stack.astype("float64")
    if transposed:
        wide = wide.swapaxes(1, 2)
    v, size = noise((3, 4, wide.shape[2]), seed=1), np.abs(noise((3, wide.shape[2]), seed=2))
    found, moduli = loops.times(stack, transposed, v, size)
    np.testing.assert_allclose(found.swapaxes(1, 2), wide @ v.swapaxes(1, 2), atol=1e-11)
    assert stack.flags.writeable
    sums = np.abs(wide) @ size[..., np.newaxis]
    np.testing.assert_allclose(moduli, sums[..., 0], rtol=1e-12)


def test_vectors_are_signs_or_any_integers():
    """±1 for floats, any int64 for integers, drawn by the seed; the last has the fixed weights."""
    signs, whole = tolerances.vectors(1, 1000, False), tolerances.vectors(1, 1000, True)
    for found in (signs, whole):
        fixed = end_to_end.weights("r", 1000, found.dtype.kind == "i")
        np.testing.assert_array_equal(found[:, -1], fixed)
    assert set(np.unique(signs[:, :-1])) == {-1.0, 1.0}
    assert abs(signs.mean()) < 0.1
    assert whole.max() > 2**60
    assert whole.min() < -(2**60)
    again = tolerances.vectors(2, 1000, False) != signs
    assert again[:, :-1].any(axis=0).all()


@pytest.mark.parametrize(("dtype", "compute"), [("float16", "float32"), ("float32", "float32")])
def test_the_tolerance_of_a_long_sum_is_a_bound(dtype, compute):
    """It grows with the length and stays positive, also past the inverse of the unit roundoff."""
    bounds = [tolerances.product_tolerance(2**n, 4, dtype, compute)[0] for n in range(16, 30)]
    assert bounds[0] > 0
    assert bounds == sorted(set(bounds))


@given(
    st.sampled_from(["float64", "complex128"]),
    st.integers(1, 30),
    st.integers(-1074, 1000),
    st.integers(-1074, 1000),
    st.integers(0, 2**32),
)
def test_honest_products_of_any_size_pass(dtype, k, one, other, seed):
    """If a product is finite, even if its factors are subnormal or near the largest number."""
    with np.errstate(all="ignore"):
        left = noise((2, 3, k), dtype, seed) * 2.0**one
        right = noise((2, k, 4), dtype, seed + 1) * 2.0**other
        product, compute = multiplied(np, "A @ B", left, right)
    if np.isfinite(product).all():
        check = checker(np, "A @ B", left, right, compute, seed)
        assert (check.check(left, right, product) <= 1.0).all()
