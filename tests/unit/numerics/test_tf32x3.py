"""float32 products as three products of split factors: the GPU kernel on a stand-in for cupy."""

import numpy as np
import pytest
from shardwise.errors import IntegrityError
from shardwise.numerics import gemm
from shardwise.plan import problem as problems

from tests import factories
from tests.kernels import multiplied
from tests.tensor_cores import Array, Cupy


@pytest.fixture(autouse=True, scope="module")
def few():
    """Few matrices per call, so that a stack takes several calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(problems, "CALL_BYTES", 2**17)
        patch.setattr(problems, "MOST_IN_CALL", 256)
        yield


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
    problem = problems.Problem(4, (24, 24), "A @ A", dtype)
    xp = Cupy()
    run, call = gemm.CublasKernel(xp, problem, "tf32x3"), problem.call_matrices
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
