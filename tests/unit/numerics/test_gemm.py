"""The kernels on NumPy: exact integers, NumPy's own bits, and sums formed inside one product."""

from math import isqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.numerics import gemm
from shardwise.plan.problem import Problem

from tests.factories import FLOATS, INTEGERS, PRODUCTS, REFERENCES, noise, stack

SHARED = "one B"
"""``A @ B`` with one B for all."""


def problem(product, dtype, left, right=None, shared=False):
    """The problem of a stack of matrices of a shape."""
    product = "A @ B" if product == SHARED else product
    return Problem(len(left), left.shape[1:], product, dtype, right, shared)


def multiplied(product, left, right=None, spare=2):
    """The products by the kernel, and what it left in the unused places behind them."""
    shared = right is not None and right.ndim == 2
    shape = None if right is None else right.shape[-2:]
    own = problem(product, left.dtype.name, left, shape, shared)
    out = np.full((len(left) + spare, *own.product_shape), 77, own.product_dtype)
    padded = np.concatenate([left, np.zeros((spare, *left.shape[1:]), left.dtype)])
    other = right
    if right is not None and not shared:
        other = np.concatenate([right, np.zeros((spare, *shape), right.dtype)])
    kernel = gemm.kernel(np, own, "ieee")
    # Batches are whole, and only the first matrices of the last one count.
    kernel.multiply(padded, other, out, len(left))
    return out[: len(left)], out[len(left) :]


def factors_of(product, n=5, dtype="float64", m=3, k=4, p=6, make=stack):
    """A stack of A, and of B where the product has one, in shapes that differ."""
    left = make((n, k, k) if product == "A @ A" else (n, m, k), dtype)
    right = {"A @ B": (n, k, p), SHARED: (k, p)}.get(product)
    return left, right and make(right, dtype, 1)


def reference(product, left, right):
    """Products by NumPy in the dtype of ``left``."""
    known = REFERENCES["A @ B" if product == SHARED else product]
    return known(left, None if right is None else right.astype(left.dtype))


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
@pytest.mark.parametrize("product", [*PRODUCTS, SHARED])
def test_products_of_a_batch_are_numpys(product, dtype):
    """All products of all dtypes, and nothing is written behind those that count."""
    left, right = factors_of(product, dtype=dtype)
    found, behind = multiplied(product, left, right)
    wide = "int64" if np.dtype(dtype).kind in "iu" else "complex128"
    expected = reference(product, left.astype(wide), right)
    np.testing.assert_array_equal(found, expected)
    assert (behind == 77).all()


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("product", PRODUCTS)
def test_a_product_has_the_bits_that_its_matrix_has_alone(product, dtype):
    """How many matrices lie in a batch, and which, changes no bit of any product."""
    left, right = factors_of(product, 7, dtype, 33, 35, 37, noise)
    whole, _ = multiplied(product, left, right)
    for low, high in ((0, 1), (6, 7), (2, 5)):
        part, _ = multiplied(product, left[low:high], None if right is None else right[low:high])
        assert part.tobytes() == whole[low:high].tobytes()
    b = None if right is None else right[3]
    assert REFERENCES[product](left[3], b).tobytes() == whole[3].tobytes()


def test_float16_is_accumulated_in_float32():
    """The sum of 3000 ones and 1024 is exact on the way, and rounded once at the end."""
    left = np.ones((1, 1, 3001), "float16")
    left[0, 0, 0] = 32
    found, _ = multiplied("A @ A.T", left)
    assert found[0, 0, 0] == np.float16(1024 + 3000)


@pytest.mark.parametrize(
    ("dtype", "compute"),
    [("float16", "float32"), ("float32", "float32"), ("float64", "float64"), ("int8", "float64"),
     ("complex64", "complex64"), ("complex128", "complex128"), ("int32", "int64")],
)  # fmt: skip
@pytest.mark.parametrize("precision", ["ieee", "tf32x3", "tf32"])
def test_a_kernel_says_what_it_accumulates_in(dtype, compute, precision):
    """NumPy has no tf32: asked for it, float32 is computed, and said to be, in float32."""
    own = problem("A @ A", dtype, np.zeros((2, 3, 3)))
    assert gemm.kernel(np, own, precision).compute == compute


# Integers.

LIMITS = {name: (int(np.iinfo(name).min), int(np.iinfo(name).max)) for name in INTEGERS}


def python_product(left, right):
    """One product by Python's own integers."""
    a, b = left.tolist(), right.tolist()
    columns = list(zip(*b, strict=True))
    return [[sum(x * y for x, y in zip(row, c, strict=True)) for c in columns] for row in a]


@given(st.sampled_from(INTEGERS), st.integers(1, 4), st.integers(1, 40), st.data())
def test_integers_are_exact(dtype, m, k, data):
    """Whatever fits int64 is exact, at the ends of every range as well."""
    low, high = LIMITS[dtype]
    bound = min(high, isqrt((2**63 - 1) // k))
    few = [max(low, -bound), bound, bound - 1, 0, 1, max(low, -1)]
    values = st.sampled_from(few)
    rows = data.draw(st.lists(st.lists(values, min_size=k, max_size=k), min_size=m, max_size=m))
    left = np.array([rows], dtype)
    found, _ = multiplied("A @ A.T", left)
    assert found[0].tolist() == python_product(left[0], left[0].T)


@pytest.mark.parametrize("dtype", ["int16", "uint16"])
@pytest.mark.parametrize(("inner", "compute"), [(2**21, "float64"), (2**21 + 1, "int64")])
def test_sums_around_two_to_the_53_are_exact(dtype, inner, compute):
    """The longest inner product that float64 takes, of the largest elements, and one longer."""
    assert Problem(1, (1, inner), "A @ A.T", dtype).compute_dtype == compute
    low, high = LIMITS[dtype]
    left = np.full((1, 1, inner), low if low else high, dtype)
    left[0, 0, -1] = high - 1  # an odd sum: float64 has no room for it past 2⁵³
    found, _ = multiplied("A @ A.T", left)
    assert found[0, 0, 0] == (inner - 1) * int(left[0, 0, 0]) ** 2 + (high - 1) ** 2


# Sums formed inside one product.


def accumulated(product, left, right=None):
    """The sum of the products of a stack, as the kernel forms it, ``(m, p)``."""
    shared = right is not None and right.ndim == 2
    shape = None if right is None else right.shape[-2:]
    own = problem(product, left.dtype.name, left, shape, shared)
    (total,) = gemm.kernel(np, own, "ieee").accumulate(left, right)
    return total


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("product", [*PRODUCTS, SHARED])
def test_the_sum_inside_one_product_is_the_sum_of_all(product, dtype):
    """It is exact where all are, and wide where float16 is accumulated in float32."""
    left, right = factors_of(product, dtype=dtype)
    total = accumulated(product, left, right)
    expected = reference(product, left.astype("complex128"), right).sum(axis=0)
    np.testing.assert_array_equal(total, expected)
    assert total.dtype == (np.float32 if dtype == "float16" else np.dtype(dtype))


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_sum_is_rounded_as_one_inner_product(product, dtype):
    """Its error is within γ(n k) of the sum of all moduli, in the dtype that accumulates."""
    left, right = factors_of(product, 9, dtype, 3, 5, 4, noise)
    total = accumulated(product, left, right)
    inner = 9 * (left.shape[1] if product == "A.T @ A" else left.shape[2])
    unit = 2.0**-53 if dtype == "float64" else 2.0**-24
    a, b = (x.astype(np.longdouble) for x in gemm.factors(product, left, right))
    off, moduli = abs(total - (a @ b).sum(axis=0)), (abs(a) @ abs(b)).sum(axis=0)
    assert (off <= 1.001 * inner * unit / (1 - inner * unit) * moduli).all()
