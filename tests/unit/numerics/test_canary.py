"""The known product, which shows in what precision a device multiplies."""

import numpy as np
import pytest
from shardwise.errors import IntegrityError
from shardwise.numerics import gemm
from shardwise.plan.problem import Problem

from tests.factories import stack


def cut(numbers, bits):
    """float32 or complex64 numbers, truncated to this many significant bits."""
    mask = np.uint32(0xFFFFFFFF << (24 - bits) & 0xFFFFFFFF)
    return (numbers.view(np.uint32) & mask).view(numbers.dtype)


def multiplied(dtype, compute, spoil=lambda x: x, problem=None):
    """Check a kernel that takes spoiled factors."""
    problem = problem or Problem(2, (5, 7), "A @ B", dtype, (7, 3))
    run = gemm.kernel(np, problem, "ieee")
    shapes = [(2, *problem.left), problem.right]
    if problem.right and not problem.shared_right:
        shapes[1] = (2, *problem.right)
    factors = [stack(shape, dtype) for shape in shapes if shape]
    out = np.full((2, *problem.product_shape), np.nan, problem.product_dtype)

    def multiply():
        given = [spoil(x) for x in factors]
        run.multiply(given[0], given[1] if len(given) > 1 else None, out, 2)
        return out

    gemm.check_precision(multiply, factors, compute)
    return out


@pytest.mark.parametrize(("dtype", "product", "left", "right", "shared"), [
    ("float16", "A @ A", (17, 17), None, False), ("float32", "A.T @ A", (9, 17), None, False),
    ("float64", "A @ A.T", (9, 17), None, False), ("complex128", "A @ A", (17, 17), None, False),
    ("complex64", "A @ B", (9, 17), (17, 11), False), ("float32", "A @ B", (9, 17), (17, 11), True),
])  # fmt: skip
def test_what_computes_as_asked_passes(dtype, product, left, right, shared):
    """Whatever its shape; also with one B for all."""
    problem = Problem(2, left, product, dtype, right, shared)
    assert multiplied(dtype, problem.compute_dtype, problem=problem)[0, 0, 0] > 1


@pytest.mark.parametrize(("dtype", "compute", "spoil"), [
    ("float32", "float32", lambda x: cut(x, 11)),
    ("complex64", "complex64", lambda x: cut(x, 11)),
    ("float32", "tf32", lambda x: cut(x, 8)),  # as bfloat16 has them
    ("float64", "float64", lambda x: x.astype("float32").astype("float64")),
])  # fmt: skip
def test_a_lower_precision_is_refused(dtype, compute, spoil):
    """No device is blamed; if the config may ask for a lower precision, the message names it."""
    with pytest.raises(IntegrityError, match=f"lower precision than {compute}") as refused:
        multiplied(dtype, compute, spoil)
    assert refused.value.exit_code == 3
    assert ("ask for precision: tf32" in str(refused.value)) == (
        compute in ("float32", "complex64")
    )
    multiplied("float32", "tf32", lambda x: cut(x, 11))  # tf32 has eleven bits
