"""Covariances against `numpy.cov`, and their proofs: on NumPy and, if there is a GPU, on cupy."""

import json
from fractions import Fraction

import numpy as np
import pytest
from shardwise.numerics import freivalds
from shardwise.plan import memory
from shardwise.plan.problem import Problem

from tests import factories
from tests.factories import noise, save, wide
from tests.gpu.conftest import needs_gpu
from tests.kernels import to_host


def results(folder, left, **over):
    """The results of a run with a covariance, by name."""
    over = {"product": "A.H @ A", "covariance": True, "materialize": False} | over
    made = factories.listed(factories.plan(folder, left, **over))
    factories.reduced(made)
    files = json.loads(made.results.summary.read_text())["files"]
    return {name: np.load(made.results.statistic(name)) for name in files}


def far(shape, dtype, mean=10):
    """Rows that lie far from zero."""
    return (noise(shape, "complex64" if "complex" in dtype else "float64") + mean).astype(dtype)


# Small; more than one stripe of the result; awkward rows, which a GPU pads.
SHAPES = [(24, 5, 3), (7, 4, 260), (3, 90, 131)]
ERRORS = {"float16": 5e-4, "float32": 3e-7, "float64": 1e-13, "complex64": 5e-7}


@pytest.mark.parametrize("keep", ["products", "sum"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ERRORS)
def test_covariances_are_those_of_numpy(tmp_path, monkeypatch, backend, dtype, shape, keep):
    """Covariance, correlation and mean of the rows, with the same bits for any cut."""
    left, seen, own = far(shape, dtype), set(), {"keep": keep, "backend": backend}
    for shards in (1, 3):
        monkeypatch.setattr(memory, "HOST_BATCH_BYTES", 10**6 // shards)
        found = results(tmp_path / str(shards), left, shards=shards, **own)
        seen.add(tuple(array.tobytes() for array in found.values()))
    assert len(seen) == 1
    rows = wide(left).reshape(-1, shape[-1])
    expected, error = np.cov(rows, rowvar=False), ERRORS[dtype]
    assert found["sum"].shape == (shape[-1],) * 2
    assert abs(found["covariance"] - expected).max() <= error * abs(expected).max()
    assert abs(found["correlation"] - np.corrcoef(rows, rowvar=False)).max() <= 4 * error
    assert abs(found["row_mean"] - rows.mean(axis=0)).max() <= 4 * error


@pytest.mark.parametrize(("keep", "materialize"), [("products", False), ("sum", True)])
def test_rows_count_times_the_weight_of_their_matrix(tmp_path, backend, keep, materialize):
    """As with NumPy's ``aweights``; a matrix of weight 0 may even hold NaN."""
    left, weights = far((9, 5, 4), "float32", 10**4), np.linspace(0, 2, 9)
    left[0] = np.nan
    own = {"weights": str(save(tmp_path / "w.npy", weights)), "keep": keep, "backend": backend}
    # A copy is hashed as a whole.
    found = results(tmp_path, left, materialize=materialize, shards=2, **own)
    rows, counted = wide(left[1:]).reshape(-1, 4), np.repeat(weights[1:], 5)
    expected = np.cov(rows, rowvar=False, aweights=counted)
    np.testing.assert_allclose(found["covariance"], expected, atol=1e-6)
    mean = np.average(rows, axis=0, weights=counted)
    np.testing.assert_allclose(found["row_mean"], mean, rtol=1e-7)


def test_a_column_that_never_changes_correlates_with_nothing(tmp_path, backend):
    """NaN in its row and column, as in NumPy, although rounding makes its covariances not 0."""
    left = factories.noise((9, 7, 3), "float64")
    left[:, :, 1] = 0.3
    found = results(tmp_path, left, product="A.T @ A", backend=backend)["correlation"]
    assert np.isnan(found).tolist() == [[i == 1 or j == 1 for j in range(3)] for i in range(3)]


@needs_gpu
@pytest.mark.parametrize("precision", ["ieee", "tf32x3"])
def test_large_covariances(tmp_path, precision):
    """By a rank-k update, or by three products of split factors."""
    left = far((3, 300, 2049), "float32")
    found = results(tmp_path, left, product="A.T @ A", backend="cupy", precision=precision)
    expected = np.cov(wide(left).reshape(-1, 2049), rowvar=False)
    assert abs(found["covariance"] - expected).max() <= 1e-6 * abs(expected).max()


@pytest.mark.parametrize(("mean", "without"), [(100, 1e-5), (10**4, 1e-2)])
def test_an_offset_saves_the_digits(tmp_path, backend, mean, without):
    """For float32 numbers far from zero; the mean of the first rows does as well as that of all."""
    left = far((20, 64, 16), "float32", mean)
    rows, errors = wide(left).reshape(-1, 16), []
    for offset in ("none", "auto", str(save(tmp_path / "mean.npy", rows.mean(axis=0)))):
        found = results(tmp_path / str(len(errors)), left, offset=offset, backend=backend, shards=2)
        errors.append(abs(found["covariance"] - np.cov(rows, rowvar=False)).max())
    assert errors[0] > without
    assert max(errors[1:]) < 1e-6


def test_covariances_of_whole_numbers_are_exact(tmp_path, backend):
    """Even without an offset, each covariance is the exact one, rounded."""
    left = factories.stack((5, 3, 4), "uint16") + np.uint16(60_000)
    own = {"product": "A.T @ A", "backend": backend, "ddof": 0}
    found = results(tmp_path, left, **own)["covariance"]
    rows = left.reshape(-1, 4).astype(object)  # Python's own integers
    squares = 15 * (rows.T @ rows) - np.outer(rows.sum(axis=0), rows.sum(axis=0))
    for number, square in zip(found.flat, squares.flat, strict=True):
        exact = Fraction(square, 15**2)
        assert abs(Fraction(float(number)) - exact) <= abs(exact) * 2**-51


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "int32"])
def test_a_wrong_sum_of_a_column_is_found(xp, dtype):
    """The proof checks column sums as the product of a row of ones and A."""
    left = factories.stack((3, 6, 5), dtype)
    product = np.concatenate(
        [factories.REFERENCES["A.H @ A"](left), left.sum(axis=1, keepdims=True)], axis=1
    ).astype("int64" if "int" in dtype else dtype)
    problem = Problem(3, (6, 5), "A.H @ A", dtype, covariance=True)
    checker = freivalds.checker(xp, problem, dtype, 0, 2)
    block, good = xp.asarray(left), xp.asarray(product)
    assert (to_host(xp, checker.check(block, None, good)) <= 1).all()
    product[1, -1, 2] += 1
    wrong = to_host(xp, checker.check(block, None, xp.asarray(product)))
    assert (wrong > 1).tolist() == [False, True, False]
