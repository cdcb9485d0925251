"""The product that is known beforehand: it shows in what precision a device multiplies."""

import numpy as np
import pytest
from shardwise.errors import IntegrityError, WrongProduct
from shardwise.multiply.batch import Batches
from shardwise.multiply.lanes import HostLane
from shardwise.numerics import canary, gemm
from shardwise.plan.problem import Problem

from tests import factories
from tests.factories import stack

LOW = ("float32", "complex64")


def cut(numbers, bits):
    """float32 numbers, or pairs of them, with so many significant bits left."""
    mask = np.uint32(0xFFFFFFFF << (24 - bits) & 0xFFFFFFFF)
    return (numbers.view(np.uint32) & mask).view(numbers.dtype)


def multiplied(dtype, compute, spoil=lambda x: x, after=lambda x: x):
    """Check a kernel that takes spoiled factors, or leaves spoiled products."""
    problem = Problem(2, (5, 7), "A @ B", dtype, (7, 3))
    run = gemm.kernel(np, problem, "ieee")
    factors = [stack((2, *shape), dtype) for shape in problem.factor_shapes]
    out = np.full((2, *problem.product_shape), np.nan, problem.product_dtype)

    def multiply():
        run.multiply(*(spoil(x) for x in factors), out, 2)
        return after(out)

    canary.check(multiply, factors, compute)


@pytest.fixture
def trial(tmp_path):
    """The trial call of a plan's kernel, on NumPy; its factors, and its arithmetic."""

    def make(dtype, product, shape, way, shared=False):
        right = stack((shape[2], 11) if shared else (shape[0], shape[2], 11), dtype)
        keep = {"keep": "sum", "reproducible": False} if way == "sum" else {"keep": "products"}
        made = factories.plan(
            tmp_path, stack(shape, dtype), right if product == "A @ B" else None,
            product=product, **keep,
        )  # fmt: skip
        own = Batches(HostLane(), made, shape[0])
        if shared:
            own.share(right)
        operation = own.operation
        return *operation.trial(*own._factors(0), own._outs), operation.compute

    return make


@pytest.mark.parametrize("way", ["products", "sum"])
@pytest.mark.parametrize(
    ("dtype", "product"),
    [("float16", "A @ A"), ("float32", "A.T @ A"), ("float64", "A @ A.T"), ("complex64", "A @ B"),
     ("complex128", "A @ A")],
)  # fmt: skip
def test_what_computes_as_asked_passes(trial, dtype, product, way):
    """The memory of the batches, whatever their shape, and each way to multiply."""
    shape = (4, 17, 17) if product == "A @ A" else (4, 9, 17)
    multiply, factors, compute = trial(dtype, product, shape, way)
    canary.check(multiply, factors, compute, lone=way == "sum")
    assert not multiply()[..., 0, 1:].any()
    assert multiply()[0, 0, 0] > 1


@pytest.mark.parametrize("way", ["products", "sum"])
def test_one_right_factor_for_all_is_tried_too(trial, way):
    """It lies in memory of its own."""
    own = trial("float32", "A @ B", (4, 9, 17), way, shared=True)
    canary.check(*own, lone=way == "sum")


@pytest.mark.parametrize("dtype", LOW)
def test_factors_cut_to_11_bits_are_refused(dtype):
    """tf32 where float32 was asked for: what to do is said, and the device is not blamed."""
    with pytest.raises(IntegrityError, match=f"lower precision than {dtype}") as refused:
        multiplied(dtype, dtype, lambda x: cut(x, 11))
    assert not isinstance(refused.value, WrongProduct)
    assert refused.value.exit_code == 3
    assert "precision: tf32" in str(refused.value)


def test_tf32_that_was_asked_for_passes():
    """Eleven bits are what it has; eight, as bfloat16, are refused."""
    multiplied("float32", "tf32", lambda x: cut(x, 11))
    with pytest.raises(IntegrityError, match="lower precision than tf32"):
        multiplied("float32", "tf32", lambda x: cut(x, 8))


def test_double_precision_computed_as_single_is_refused():
    """There is no precision to ask for instead."""
    with pytest.raises(IntegrityError, match="lower precision than float64") as refused:
        multiplied("float64", "float64", lambda x: x.astype("float32").astype("float64"))
    assert "tf32" not in str(refused.value)


@pytest.mark.parametrize("what", ["zeros", "nan", "one beside", "nan beside"])
def test_a_product_that_is_wrong_altogether_blames_the_device(what):
    """It is not a matter of precision: the device is suspect, as for any wrong product."""

    def after(products):
        if what in ("zeros", "nan"):
            products[...] = {"zeros": 0, "nan": np.nan}[what]
        else:
            products[1, 2, 1] = {"one beside": 1, "nan beside": np.nan}[what]
        return products

    with pytest.raises(WrongProduct, match="suspect the device"):
        multiplied("float32", "float32", after=after)
