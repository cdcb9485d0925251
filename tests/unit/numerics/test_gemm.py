"""The kernels on NumPy: exact integers, NumPy's own bits, and sums formed inside one product."""

import itertools
from math import isqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.errors import IntegrityError
from shardwise.numerics import gemm
from shardwise.plan.problem import Problem
from threadpoolctl import threadpool_limits

from tests import kernels
from tests.factories import INTEGERS, noise, stack


def multiplied(product, left, right=None):
    """The products by the kernel."""
    return kernels.multiplied(np, product, left, right)[0]


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("product", ["A @ A", "A.T @ A"])
def test_threads_change_no_bit(product, dtype, monkeypatch):
    """Neither ours nor those that BLAS may use change how it rounds."""
    left, found = noise((5, 300, 300), dtype), set()
    for ours, of_blas in itertools.product((1, 3), (1, 4)):
        monkeypatch.setenv("OMP_NUM_THREADS", str(ours))
        with threadpool_limits(of_blas, "blas"):
            found.add(multiplied(product, left).tobytes())
    assert len(found) == 1


LIMITS = {name: (int(np.iinfo(name).min), int(np.iinfo(name).max)) for name in INTEGERS}


@given(st.sampled_from(INTEGERS), st.integers(1, 4), st.integers(1, 40), st.data())
def test_integers_are_exact(dtype, m, k, data):
    """Whatever fits int64 is exact, at the ends of every range as well."""
    low, high = LIMITS[dtype]
    bound = min(high, isqrt((2**63 - 1) // k))
    few = [max(low, -bound), bound, bound - 1, 0, 1, max(low, -1)]
    values = st.sampled_from(few)
    rows = data.draw(st.lists(st.lists(values, min_size=k, max_size=k), min_size=m, max_size=m))
    left = np.array([rows], dtype)
    whole = left[0].astype(object)  # Python's own integers
    assert multiplied("A @ A.T", left)[0].tolist() == (whole @ whole.T).tolist()


@pytest.mark.parametrize("dtype", ["int16", "uint16"])
@pytest.mark.parametrize(("inner", "compute"), [(2**21, "float64"), (2**21 + 1, "int64")])
def test_sums_around_two_to_the_53_are_exact(dtype, inner, compute):
    """The longest inner product of the largest elements that float64 computes, and one longer."""
    assert Problem(1, (1, inner), "A @ A.T", dtype).compute_dtype == compute
    low, high = LIMITS[dtype]
    left = np.full((1, 1, inner), low if low else high, dtype)
    left[0, 0, -1] = high - 1  # an odd sum: float64 has no room for it past 2⁵³
    found = multiplied("A @ A.T", left)
    assert found[0, 0, 0] == (inner - 1) * int(left[0, 0, 0]) ** 2 + (high - 1) ** 2


def cut(numbers, bits):
    """float32 or complex64 numbers, truncated to this many significant bits."""
    mask = np.uint32(0xFFFFFFFF << (24 - bits) & 0xFFFFFFFF)
    return (numbers.view(np.uint32) & mask).view(numbers.dtype)


def tried(dtype, compute, spoil=lambda x: x):
    """Check a kernel that takes spoiled factors."""
    problem = Problem(2, (5, 7), "A @ B", dtype, (7, 3))
    run = gemm.kernel(np, problem, "ieee")
    factors = [stack(shape, dtype) for shape in ((2, 5, 7), (2, 7, 3))]
    out = np.full((2, *problem.product_shape), np.nan, problem.product_dtype)

    def multiply():
        run.multiply(*map(spoil, factors), out, 2)
        return out

    gemm.check_precision(multiply, factors, compute)


@pytest.mark.parametrize(("dtype", "compute", "spoil"), [
    ("float32", "float32", lambda x: cut(x, 11)),
    ("complex64", "complex64", lambda x: cut(x, 11)),
    ("float32", "tf32", lambda x: cut(x, 8)),  # as bfloat16 has them
    ("float64", "float64", lambda x: x.astype("float32").astype("float64")),
])  # fmt: skip
def test_a_lower_precision_is_refused(dtype, compute, spoil):
    """No device is blamed: trying another one would not help."""
    with pytest.raises(IntegrityError, match=f"lower precision than {compute}") as refused:
        tried(dtype, compute, spoil)
    assert refused.value.exit_code == 3
    tried("float32", "tf32", lambda x: cut(x, 11))  # tf32 has eleven bits
