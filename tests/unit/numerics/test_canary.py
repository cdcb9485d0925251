"""The known product, which shows in what precision a device multiplies."""

import numpy as np
import pytest
from shardwise.errors import IntegrityError
from shardwise.multiply.host import Host
from shardwise.multiply.ring import Ring
from shardwise.numerics import canary, gemm
from shardwise.plan.problem import Problem

from tests import factories
from tests.factories import stack


def cut(numbers, bits):
    """float32 or complex64 numbers, truncated to this many significant bits."""
    mask = np.uint32(0xFFFFFFFF << (24 - bits) & 0xFFFFFFFF)
    return (numbers.view(np.uint32) & mask).view(numbers.dtype)


def multiplied(dtype, compute, spoil):
    """Check a kernel that takes spoiled factors."""
    problem = Problem(2, (5, 7), "A @ B", dtype, (7, 3))
    run = gemm.kernel(np, problem, "ieee")
    factors = [stack((2, *shape), dtype) for shape in problem.factor_shapes]
    out = np.full((2, *problem.product_shape), np.nan, problem.product_dtype)

    def multiply():
        run.multiply(*(spoil(x) for x in factors), out, 2)
        return out

    canary.check(multiply, factors, compute)


@pytest.mark.parametrize(("dtype", "product", "shape"), [
    ("float16", "A @ A", None), ("float32", "A.T @ A", None), ("float64", "A @ A.T", None),
    ("complex128", "A @ A", None), ("complex64", "A @ B", (4, 17, 11)),
    ("float32", "A @ B", (17, 11)),
])  # fmt: skip
def test_what_computes_as_asked_passes(tmp_path, dtype, product, shape):
    """In the memory of the ring, whatever its shape; also with one B for all."""
    left = stack((4, 17, 17) if product == "A @ A" else (4, 9, 17), dtype)
    right = stack(shape, dtype) if shape else None
    made = factories.plan(tmp_path, left, right, product=product)
    ring = Ring(Host(), made, next(iter(made.shards.values())))
    multiply, factors = ring.operation.trial(*ring.trial_memory())
    canary.check(multiply, factors, ring.operation.compute)
    assert not multiply()[..., 0, 1:].any()
    assert multiply()[0, 0, 0] > 1


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
