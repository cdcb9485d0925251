"""Products and their proofs: the same tests on NumPy and, where there is a GPU, on cupy."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from shardwise import multiply, proof
from shardwise.errors import InputError, IntegrityError

from tests import factories
from tests.gpu.conftest import HAS_DRIVER, needs_gpu

NUMBERS = (*factories.FLOATS, "int8", "int16", "int32", "int64", "uint8")
SQUARE = (5, 24, 24)
# Sizes that are no multiple of any tile, single rows and columns, and one matrix alone.
SHAPES = {
    "A @ A": (SQUARE, (3, 1, 1), (1, 33, 33)),
    "A.T @ A": (SQUARE, (3, 1, 40), (2, 37, 9)),
    "A @ A.T": (SQUARE, (3, 40, 1), (2, 9, 37)),
    "A @ B": (SQUARE, (3, 1, 40), (2, 37, 9)),
}
CASES = [(product, shape) for product, shapes in SHAPES.items() for shape in shapes]
RIGHT_COLUMNS = 7
LISTED = r"GPU \d+: (.*) \(UUID: (GPU-[0-9a-f-]+)\)"


def factors(product, shape, dtype):
    """A stack, and the B of ``A @ B``; whole numbers for integers, else numbers that round."""
    make = factories.stack if "int" in dtype else factories.noise
    right = make((shape[0], shape[2], RIGHT_COLUMNS), dtype, seed=1)
    return make(shape, dtype), right if product == "A @ B" else None


def wide(array):
    """The same numbers as float64, complex128 or int64."""
    kinds = {"f": np.float64, "c": np.complex128}
    return None if array is None else array.astype(kinds.get(array.dtype.kind, np.int64))


def rounding(dtype, k):
    """How far a product may be from the exact one: relative to ``|A| |B|``, and absolutely.

    γ(k, u) of the precision that it is accumulated in, 4 times that for complex numbers; float16
    is accumulated in float32, then rounded once, and may be rounded to a subnormal number.
    """
    compute, stored = np.finfo("float32" if dtype == "float16" else dtype), np.finfo(dtype)
    unit = float(compute.eps) / 2
    relative = (4 if dtype.startswith("complex") else 1) * k * unit / (1 - k * unit)
    relative += float(np.finfo("float64").eps) * k  # the reference rounds too
    if dtype == "float16":
        relative += 1.01 * float(stored.eps) / 2
    return relative, float(stored.smallest_subnormal)


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize(("product", "shape"), CASES)
def test_products_are_right(tmp_path, backend, product, shape, dtype):
    """A shard's products agree with NumPy's in double precision as far as rounding allows."""
    left, right = factors(product, shape, dtype)
    made = factories.plan(
        tmp_path, left, right, backend=backend, product=product, materialize=False, shards=1
    )
    multiply.run_shard(made, "00000")
    found = factories.products(made)
    reference = factories.REFERENCES[product]
    exact = reference(wide(left), wide(right))
    assert (found.shape, found.dtype) == (
        exact.shape,
        wide(left).dtype if "int" in dtype else dtype,
    )
    if "int" in dtype:
        np.testing.assert_array_equal(found, exact)
        return
    moduli = [None if x is None else abs(wide(x)) for x in (left, right)]
    k = shape[1] if product == "A.T @ A" else shape[2]
    relative, absolute = rounding(dtype, k)
    assert (abs(wide(found) - exact) <= relative * reference(*moduli) + absolute).all()


def stacks(xp, product, shape, dtype):
    """The two factors of each product, and their products, as arrays of ``xp``."""
    block, other = factors(product, shape, dtype)
    if "int" in dtype:
        block, other = wide(block), wide(other)
    block, other = xp.asarray(block), None if other is None else xp.asarray(other)
    left, right = multiply.factors(product, block, other)
    result, compute = multiply.multiply(xp, left, right)
    return left, right, result, compute


def residual(xp, left, right, result, compute):
    """Freivalds' check with vectors of a fixed seed, as a NumPy array."""
    left, right = xp.ascontiguousarray(left), xp.ascontiguousarray(right)
    shapes = (left.shape[1:], right.shape[1:])
    checker = proof.Checker(xp, "A @ B", *shapes, result.dtype.name, compute, 3, len(left))
    ratio = checker.check(left, right, result)
    return ratio if xp is np else xp.asnumpy(ratio)


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize(("product", "shape"), CASES)
def test_honest_products_pass_their_proof(xp, product, shape, dtype):
    """Rounding never reaches the tolerance of Freivalds' check."""
    assert (residual(xp, *stacks(xp, product, shape, dtype)) <= 1).all()


@pytest.mark.parametrize("dtype", NUMBERS)
def test_one_wrong_element_is_caught(xp, dtype):
    """An error of three times the documented bound fails the proof of its matrix alone."""
    left, right, result, compute = stacks(xp, "A @ B", SQUARE, dtype)
    error = 1
    if "int" not in dtype:
        k, p = left.shape[-1], right.shape[-1]
        relative, absolute = proof.tolerance(k, p, dtype, compute)
        row = abs(wide(left[2, 4])) @ abs(wide(right[2])).sum(axis=1)
        error = 3 * (relative * float(row) + absolute)
        # The nearest numbers that float16 can hold may be further apart than that.
        error = max(error, 2 * float(np.finfo(dtype).eps) * float(abs(result[2, 4, 1])))
    result[2, 4, 1] += error
    assert (residual(xp, left, right, result, compute) > 1).tolist() == [i == 2 for i in range(5)]


@pytest.mark.parametrize("dtype", NUMBERS)
def test_swapped_products_are_caught(xp, dtype):
    """Right products in each other's places fail their proofs, and no others do."""
    left, right, result, compute = stacks(xp, "A.T @ A", SQUARE, dtype)
    result[[1, 3]] = result[[3, 1]].copy()
    wrong = residual(xp, left, right, result, compute) > 1
    assert wrong.tolist() == [False, True, False, True, False]


def test_a_wrong_product_is_never_committed(tmp_path, backend, monkeypatch):
    """Where the multiplication goes wrong, the shard fails its proof and leaves nothing."""
    honest = multiply.multiply

    def wrong(xp, left, right):
        result, compute = honest(xp, left, right)
        result[0, 0, 0] += 1
        return result, compute

    monkeypatch.setattr(multiply, "multiply", wrong)
    made = factories.plan(
        tmp_path, factories.noise(SQUARE), backend=backend, materialize=False, shards=1
    )
    with pytest.raises(IntegrityError, match="matrix 0 is wrong"):
        multiply.run_shard(made, "00000")
    assert not made.results.product("00000").exists()
    assert not made.results.receipt("00000").exists()


# An odd dimension starts matrices of a stack at addresses that are aligned differently.
@pytest.mark.parametrize("dim", [33, 72])
@pytest.mark.parametrize("dtype", factories.FLOATS)
@pytest.mark.parametrize("product", factories.PRODUCTS)
def test_bits_do_not_depend_on_the_number_of_matrices(xp, product, dtype, dim):
    """A matrix has the same product in a call of its own as in any other call."""
    left, right, together, _ = stacks(xp, product, (9, dim, dim), dtype)
    for count in (1, 2, 5):
        for low in range(0, 9, count):
            part = slice(low, low + count)
            alone, _ = multiply.multiply(xp, left[part], right[part])
            assert alone.tobytes() == together[part].tobytes()


@pytest.mark.parametrize("dim", [33, 40])
@pytest.mark.parametrize("keep", ["products", "sum"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64", "int32"])
def test_bits_do_not_depend_on_the_slab(tmp_path, backend, dtype, keep, dim, monkeypatch):
    """Slabs of one matrix, of two, and of all write the same file."""
    left, _ = factors("A @ A", (7, dim, dim), dtype)
    written = set()
    for number, slab_bytes in enumerate((1, 2 * dim * dim * 8, 64 * 2**20)):
        monkeypatch.setattr("shardwise.plan.SLAB_BYTES", slab_bytes)
        folder = tmp_path / str(number)
        made = factories.plan(folder, left, backend=backend, keep=keep, materialize=False, shards=1)
        multiply.run_shard(made, "00000")
        written.add(made.results.product("00000").read_bytes())
    assert len(written) == 1


@pytest.mark.parametrize("position", [0, 6])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nonfinite_input_is_refused_by_name(tmp_path, backend, value, position):
    """The message names the matrix that holds it."""
    left = factories.noise((7, 8, 8), "float32")
    left[position, 3, 2] = value
    made = factories.plan(tmp_path, left, backend=backend, materialize=False, shards=1)
    with pytest.raises(InputError, match=f"matrix {position} holds NaN or Inf"):
        multiply.run_shard(made, "00000")


def test_nonfinite_input_is_computed_where_allowed(tmp_path, backend):
    """NaN spreads as arithmetic has it; the other matrices are computed and proven."""
    left = factories.noise((4, 8, 8), "float32")
    left[2, 3, 3] = np.nan
    made = factories.plan(
        tmp_path, left, backend=backend, nonfinite="allow", materialize=False, shards=1
    )
    multiply.run_shard(made, "00000")
    found = np.isnan(factories.products(made))
    assert found.any(axis=(1, 2)).tolist() == [False, False, True, False]
    np.testing.assert_array_equal(found[2], np.isnan(left[2] @ left[2]))


def test_overflow_is_named(tmp_path, backend):
    """A product that float16 cannot hold is refused, although its factors are finite."""
    left = np.full((2, 8, 8), 1000, np.float16)
    made = factories.plan(tmp_path, left, backend=backend, materialize=False, shards=1)
    with pytest.raises(InputError, match="matrix 0 overflows float16"):
        multiply.run_shard(made, "00000")


# float32 products of a 1024 x 1024 matrix, and how far their norm is from that in float64.
PRECISION = """
import sys
import numpy as np
from shardwise.multiply import load_backend, multiply
xp, _ = load_backend("cupy")
a = np.random.default_rng(0).standard_normal((2, 1024, 1024), np.float32)
found = xp.asnumpy(multiply(xp, xp.asarray(a), xp.asarray(a))[0])
wide = a.astype(np.float64)
exact = wide @ wide
sys.stdout.write(str(np.linalg.norm(found - exact) / np.linalg.norm(exact)))
"""


@needs_gpu
def test_float32_is_never_computed_as_tf32():
    """Switches in the user's environment change nothing: the error is float32's, not tf32's."""
    env = os.environ | {
        "CUPY_TF32": "1",
        "NVIDIA_TF32_OVERRIDE": "1",
        "PYTHONPATH": os.pathsep.join([str(factories.SCRIPTS), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, "-c", PRECISION], env=env, capture_output=True, text=True, check=True
    )
    # √k u; tf32, whose unit roundoff is 2⁻¹¹, is about 2e-4 off.
    assert float(done.stdout) < 1024**0.5 * 2**-24


def hand_made(folder, backend):
    """Plan one shard of a synthetic stack by the scripts alone; the words for multiply.py."""
    settings = {
        "synthetic": {"matrices": 3, "dim": 64},
        "results": str(folder / "results"),
        "shards": 1,
        "materialize": False,
        "backend": backend,
    }
    file, plan = folder / "mine.yaml", folder / "results" / "plan.tsv"
    file.write_text(json.dumps(settings))  # JSON is YAML
    assert factories.run("plan", "--configfile", file).returncode == 0
    assert factories.run("synthesize", "--plan", plan).returncode == 0
    return ["--plan", plan, "--shard", "00000"]


def test_by_hand_the_receipt_names_the_device(tmp_path, backend):
    """The receipt of a shard computed by hand says on which device, by the driver's own UUID."""
    words = hand_made(tmp_path, backend)
    done = factories.run("multiply", *words)
    assert done.returncode == 0, done.stderr
    receipt = json.loads((tmp_path / "results" / "products" / "00000.json").read_bytes())
    assert receipt["backend"] == backend
    if backend == "numpy":
        assert receipt["device"]["name"] == "CPU"
        return
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    names = {uuid: name for name, uuid in re.findall(LISTED, listing.stdout)}
    assert names[receipt["device"]["uuid"]] == receipt["device"]["name"]
    assert receipt["versions"]["cupy"]


@needs_gpu
def test_without_a_usable_device_it_says_try_again(tmp_path):
    """A driver, but no device for this task: exit 75, and the message shows what was granted."""
    words = hand_made(tmp_path, "auto")
    done = factories.run("multiply", *words, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 75
    assert "no usable device" in done.stderr
    assert "CUDA_VISIBLE_DEVICES=''" in done.stderr


@pytest.mark.skipif(HAS_DRIVER, reason="there is an NVIDIA driver here")
def test_without_a_driver_cupy_is_refused(tmp_path):
    """`backend: cupy` on a machine without a driver exits 2 and names both ways out."""
    done = factories.run("multiply", *hand_made(tmp_path, "cupy"))
    assert done.returncode == 2
    assert "backend: cupy needs an NVIDIA driver" in done.stderr
    assert "backend: numpy" in done.stderr
