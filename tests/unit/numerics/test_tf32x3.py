"""float32 products as three products of split factors: the GPU kernel on a stand-in for cupy."""

import numpy as np
import pytest
from shardwise.errors import IntegrityError
from shardwise.numerics import gemm, tolerances
from shardwise.plan import memory
from shardwise.plan.problem import Problem

from tests import factories
from tests.kernels import exactly, multiplied, problem_of
from tests.tensor_cores import Array, Cupy, numbers


@pytest.fixture(autouse=True, scope="module")
def few():
    """Few matrices per call, so that a stack takes several calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "CALL_BYTES", 2**17)
        patch.setattr(memory, "MOST_IN_CALL", 256)
        yield


@pytest.mark.parametrize("kind", ["normal", "ill-conditioned"])
@pytest.mark.parametrize(("product", "shape", "calls"), [
    ("A @ A", (600, 600), [600] * 2 + [128] * 4 + [88]),
    ("A.T @ A", (1036, 40), [1036] * 2 + [256] * 4 + [12]),
    ("A @ A.T", (40, 1036), [1036] * 2 + [256] * 4 + [12]),
    ("A @ B", (40, 2046), [2048] * 2 + [256] * 8),  # padded, which changes no chunk
    ("A @ B", (40, 2052), [2052] * 2 + [512] * 4 + [4]),
])  # fmt: skip
def test_the_error_is_that_of_float32(product, shape, calls, kind):
    """The largest of any element, relative to the sum of moduli; long inner products in chunks."""
    xp, left = Cupy(), numbers(kind, (1, *shape))
    other = numbers(kind, (1, shape[1], 8), seed=1) if product == "A @ B" else None
    found, compute = multiplied(xp, product, left, other, "tf32x3")
    inner = problem_of(product, left, other).factor_shapes[0][1]
    assert compute == "tf32x3"
    assert xp.calls == calls
    exact, moduli = exactly(product, left, other)
    error, plain = (
        float((abs(made - exact) / moduli).max())
        for made in (found, factories.REFERENCES[product](left, other))
    )
    assert error <= max(1.5 * plain, 2.0**-22)
    assert error <= tolerances.product_tolerance(inner, found.shape[2], "float32", "tf32x3")[0]


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("count", "shape"), [(300, (3, 5)), (4, (33, 515)), (4, (140, 131))])
def test_several_calls_padded_or_not_and_one_b_for_all(dtype, count, shape, shared):
    """Small whole numbers are exact, wherever a matrix lies, and with one B for all."""
    left = factories.stack((count, *shape), dtype)
    right = factories.stack((1 if shared else count, shape[1], 7), dtype, 1)
    found, _ = multiplied(Cupy(), "A @ B", left, right[0] if shared else right, "tf32x3")
    np.testing.assert_array_equal(found, left @ right)


def trial(lost, dtype="float32"):
    """Check the known product on a device that computes the calls of these numbers as 0."""
    problem = Problem(4, (24, 24), "A @ A", dtype)
    xp = Cupy()
    run, call = gemm.CublasKernel(xp, problem, "tf32x3"), memory.call_matrices(problem)
    honest = run._gemm
    turn = iter(range(3))

    def erring(left, right, out, scale=None, keep=None):
        honest(left * (next(turn) not in lost), right, out, scale, keep)

    run._gemm = erring
    left, out = (np.zeros((call, 24, 24), dtype).view(Array) for _ in range(2))
    gemm.check_precision(lambda: run.multiply(left, None, out, call) or out, [left], run.compute)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_the_known_product_is_exact(dtype):
    """With all three calls; it is not without both small ones, as in tf32, or without one."""
    trial((), dtype)
    for lost in ((0, 1), (0,), (1,)):
        with pytest.raises(IntegrityError, match="lower precision than tf32x3"):
            trial(lost, dtype)
