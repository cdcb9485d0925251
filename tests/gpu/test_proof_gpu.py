"""Freivalds' check against the plain formula: on NumPy and, if there is a GPU, on cupy."""

import itertools
import math

import numpy as np
import pytest
from shardwise.errors import IntegrityError
from shardwise.numerics import end_to_end, gemm, tolerances
from shardwise.plan.problem import takes_b
from shardwise.records import failures

from tests import factories
from tests.factories import wide
from tests.gpu.conftest import needs_gpu
from tests.kernels import SEED, checker, modulus, on, to_host

SIZES = (1, 31, 129)
N = 3


def expected(a, b, c, dtype, compute, group=2):
    """The ratios by their formula, from whole stacks."""
    relative, absolute = tolerances.product_tolerance(a.shape[-1], b.shape[-1], dtype, compute)
    r = tolerances.vectors(SEED, b.shape[-1], False)
    gap = modulus(wide(c) @ r - wide(a) @ (wide(b) @ r))
    bound = relative * (modulus(wide(a)) @ modulus(wide(b)).sum(axis=-1, keepdims=True)) + absolute
    rows = (gap / bound).max(axis=2)
    found = rows.max(axis=1)
    for low in range(0, len(c) if dtype in tolerances.CLOSER_LOOK else 0, group):
        i, row = np.unravel_index(rows[low : low + group].argmax(), rows[:group].shape)
        found[low + i] = max(found[low + i], closely(a, b, c, low + i, row, dtype, compute))
    return found


def closely(a, b, c, i, row, dtype, compute):
    """How far the elements of one row are off, in units of their own tolerance."""
    b = b[i] if b.ndim == 3 else b
    relative, absolute = tolerances.product_tolerance(a.shape[-1], 1, dtype, compute)
    gap = modulus(wide(c)[i, row] - wide(a)[i, row] @ wide(b))
    return (gap / (relative * (modulus(wide(a))[i, row] @ modulus(wide(b))) + absolute)).max()


def case(product, dtype, dim):
    """A stack, its B or None, their products, and the dtype of the accumulation."""
    shape = (N, dim, dim) if product == "A @ A" else (N, dim, dim + 2)
    left = factories.noise(shape, dtype, dim)
    rows = factories.right_rows(product, *shape[1:])
    right = factories.noise((N, rows, dim + 1), dtype, dim + 1) if rows else None
    compute = "float32" if dtype == "float16" else dtype
    a, b = factories.factors(product, left, right)
    return left, right, (a.astype(compute) @ b.astype(compute)).astype(dtype), compute


def forms(a, b, c):
    """Contribution, reference and mass of each product by their definition."""
    left, right = (
        end_to_end.weights(side, n, c.dtype.kind == "i")
        for side, n in (("l", a.shape[1]), ("r", b.shape[2]))
    )
    own = [x[:, None] for x in ((c @ right) @ left, (a @ (b @ right)[..., None])[..., 0] @ left)]
    if c.dtype.kind == "i":
        return np.concatenate(own, axis=1)
    mass = (modulus(a) @ modulus(b).sum(axis=2)[..., None])[..., 0] @ np.abs(left)
    return np.concatenate([*(x.view("float64") for x in own), mass[:, None]], axis=1)


@pytest.mark.parametrize(("product", "dtype", "dim"), [
    *itertools.product(factories.PRODUCTS, factories.FLOATS, SIZES),
    *((product, "float32", 1101) for product in factories.PRODUCTS),  # cut among threads
    ("A @ A", "complex64", 1100),  # a block of threads for each
])  # fmt: skip
def test_ratios_and_forms_are_those_of_their_definition(xp, product, dtype, dim):
    """Honest products pass, one planted error is found; all agree up to rounding."""
    left, right, result, compute = case(product, dtype, dim)
    error = 1e4 if dtype == "float16" else 10.0 if dim < 1000 else 1e3
    wrong = result.copy()
    wrong[1, dim // 2, dim // 3] += error
    check = checker(xp, product, left, right, compute)
    a, b = factories.factors(product, left, right)
    for c, passes in ((result, [True] * N), (wrong, [True, False, True])):
        found = to_host(xp, check.check(*on(xp, left, right, c)))
        assert found.shape == (N,)
        assert (found <= 1.0).tolist() == passes
        # If products are as exact as the check, the check's own rounding shows.
        atol = 1.0 if dtype in ("float64", "complex128") else 1e-6
        np.testing.assert_allclose(found, expected(a, b, c, dtype, compute), rtol=1e-6, atol=atol)
        own = forms(*map(wide, (a, b, c)))  # of the product as given, right or wrong
        off = abs(to_host(xp, check.forms).T - own)
        assert (off <= 1e-12 * (own[:, -1:] + error * (c is wrong))).all()


@pytest.mark.parametrize("dtype", factories.FLOATS)
@pytest.mark.parametrize(("which", "value"), [(0, np.nan), (1, np.inf), (2, -np.inf)])
def test_a_finite_ratio_means_that_all_is_finite(xp, dtype, which, value):
    """NaN or an infinity in A, B or the product alone makes the ratio of that matrix not finite."""
    left, right, result, compute = case("A @ B", dtype, 31)
    stacks = [left, right, result]
    stacks[which][1, 4, 7] = value
    check = checker(xp, "A @ B", left, right, compute)
    found = to_host(xp, check.check(*on(xp, *stacks)))
    assert np.isfinite(found).tolist() == [True, False, True]
    assert not found[1] <= 1.0


@pytest.mark.parametrize("weigh", [False, True])
@pytest.mark.parametrize("n", [1, 256, 257, 1000, 2**16 + 513])
def test_forms_are_added_up_whatever_their_number(xp, n, weigh):
    """Each form counts once, or times its weight; the mass, times the weight's modulus."""
    forms, factors = factories.noise((3, n), "float64"), np.ones((3, n))
    if weigh:
        weights = factories.noise((n,), "float64", 7)
        weights[::3] = 0
        factors = np.stack([weights, weights, abs(weights)])
    given = [xp.array(forms), xp.asarray(weights) if weigh else None]
    found = to_host(xp, end_to_end.add_up(xp, *given))
    expected = [math.fsum(row) for row in forms * factors]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14 * n)
    whole = (2**40 * forms).astype("int64")
    added = to_host(xp, end_to_end.add_up(xp, xp.asarray(whole)))
    np.testing.assert_array_equal(added, whole.sum(axis=1))


def test_integers_are_checked_without_any_tolerance(xp):
    """One unit is found, though floats would not see it; forms are exact and have no mass."""
    left = factories.stack((N, 7, 7), "int64", 3) + 2**28
    product = left @ left
    product[1, 0, 0] += 1
    check = checker(xp, "A @ A", left, None, "int64")
    ratio = to_host(xp, check.check(*on(xp, left, None, product)))
    assert ratio.tolist() == [0, np.inf, 0]
    np.testing.assert_array_equal(to_host(xp, check.forms).T, forms(left, left, product))


@needs_gpu
@pytest.mark.parametrize("product", factories.PRODUCTS)
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_float32_that_is_computed_as_tf32_is_refused(tmp_path, monkeypatch, dtype, product):
    """Also if it should be tf32x3; no device is blamed. If tf32 is asked for, it is computed."""
    honest = gemm.kernel

    def lower(xp, problem, precision):
        run = honest(xp, problem, "tf32")
        # The kernel claims the arithmetic that was asked for.
        run.compute = problem.compute_dtype if precision == "ieee" else precision
        return run

    monkeypatch.setattr(gemm, "kernel", lower)
    left = factories.stack((4, 192, 192), dtype)
    over = {"right": left[0] if takes_b(product) else None, "product": product, "shards": 1}
    for precision in ("ieee", "tf32x3"):
        folder, own = tmp_path / precision, over | {"precision": precision, "backend": "cupy"}
        made = factories.plan(folder, left, **own)
        told = factories.refused(made, kind=IntegrityError)
        assert "lower precision than" in told
        assert not failures.barred(made.results)
    factories.computed(factories.plan(tmp_path, left, precision="tf32", backend="cupy", **over))
