"""Products in panels on NumPy and, where there is a GPU, on cupy."""

import numpy as np
import pytest
from shardwise import kernels, multiply, sizes
from shardwise.errors import InputError, IntegrityError
from shardwise.multiply import load_backend
from shardwise.problem import Problem
from shardwise.proof import PanelChecker, tolerance
from shardwise.tiles import panels

from tests import factories
from tests.gpu.conftest import needs_gpu

SHAPES = {
    "A @ A": (3, 37, 37),
    "A.T @ A": (3, 41, 29),
    "A @ A.T": (3, 29, 41),
    "A @ B": (3, 29, 41),
}
DTYPES = ("float16", "float32", "float64", "complex64", "int32", "int8")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Panels so small that tiny matrices take many."""
    monkeypatch.setattr(sizes, "TILE_BYTES", 32)
    monkeypatch.setattr(sizes, "PANEL_BYTES", 2000)
    monkeypatch.setattr(sizes, "SLAB_BYTES", 1000)


def factors(product, dtype, make, shared=False):
    """A stack, and the B of ``A @ B``: one a matrix, or one for all."""
    shape = SHAPES[product]
    right = make((shape[2], 23) if shared else (shape[0], shape[2], 23), dtype, seed=1)
    return make(shape, dtype), right if product == "A @ B" else None


def computed(folder, left, right=None, **over):
    """A plan, read in place, whose shards have all been multiplied in panels."""
    made = factories.plan(folder, left, right, materialize=False, **over)
    assert sizes.tiled(made.problem)
    for shard_id in made.shards:
        multiply.run_shard(made, shard_id)
    return made


def wide(array):
    """The same numbers in double precision, or as int64."""
    kinds = {"f": "float64", "c": "complex128"}
    return None if array is None else array.astype(kinds.get(array.dtype.kind, "int64"))


@pytest.mark.parametrize("keep", ["products", "sum"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("product", factories.PRODUCTS)
def test_products_in_panels_are_exact_for_whole_numbers(tmp_path, backend, product, dtype, keep):
    """All products of all dtypes, kept or summed, and proven."""
    left, right = factors(product, dtype, factories.stack)
    over = {"product": product, "keep": keep, "backend": backend, "shards": 1}
    made = computed(tmp_path, left, right, **over)
    exact = factories.REFERENCES[product](wide(left), wide(right))
    exact = exact.sum(axis=0)[None] if keep == "sum" else exact
    np.testing.assert_array_equal(factories.results(made), exact)


@pytest.mark.parametrize("panel", [700, 20_000])
def test_one_right_factor_for_all(tmp_path, backend, monkeypatch, panel):
    """A B that comes again and again, or stays on the device beside panels of A that change."""
    monkeypatch.setattr(sizes, "PANEL_BYTES", panel)
    left, right = factors("A @ B", "float32", factories.stack, shared=True)
    left = np.concatenate([left] * 20)
    made = computed(tmp_path, left, right, product="A @ B", backend=backend, shards=1)
    np.testing.assert_array_equal(factories.results(made), left @ right)


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64"])
def test_bits_do_not_depend_on_the_cut(tmp_path, backend, dtype):
    """One shard or three: the same products."""
    left, _ = factors("A @ A", dtype, factories.noise)
    seen = {
        factories.results(
            computed(tmp_path / str(shards), left, backend=backend, shards=shards)
        ).tobytes()
        for shards in (1, 3)
    }
    assert len(seen) == 1


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize(
    ("m", "k", "p"), [(40, 24, 56), (1, 7, 9), (7, 1, 9), (7, 9, 1), (1, 1, 1)]
)
def test_slices_are_multiplied_and_added(xp, dtype, m, k, p):
    """Slices of wider matrices, transposed or not, into a slice; what lies beside it stays."""
    kernel = kernels.kernel(xp, Problem(1, (64, 64), "A @ A", dtype), "ieee")
    left, tall, right, wide_right = (
        xp.asarray(factories.stack(shape, dtype, seed))
        for seed, shape in enumerate([(m, k + 3), (k, m + 5), (k, p), (p, k)])
    )
    accumulated = "float32" if dtype == "float16" else dtype
    for one, other in ((left[:, 2 : 2 + k], right), (tall[:, 4 : 4 + m].T, wide_right.T)):
        whole = xp.full((m, p + 6), 7, accumulated)
        product = one.astype(accumulated) @ other.astype(accumulated)
        for add, expected in ((False, product), (True, 2 * product), (True, 3 * product)):
            kernel.multiply_add(one, other, whole[:, 1 : 1 + p], add)
            assert bool((whole[:, 1 : 1 + p] == expected).all())
        whole[:, 1 : 1 + p] = 7
        assert bool((whole == 7).all())


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "complex64", "complex128", "int16"]
)
@pytest.mark.parametrize("product", factories.PRODUCTS)
def test_the_check_tells_wrong_from_honest(xp, product, dtype):
    """Honest products pass panel by panel; one wrong element fails its own panel alone."""
    left, right = (None if x is None else x[0] for x in factors(product, dtype, factories.stack))
    found = factories.REFERENCES[product](wide(left), wide(right))
    found = xp.asarray(found.astype("int64" if "int" in dtype else dtype))
    compute = "float32" if dtype == "float16" else dtype
    shapes = left.shape, None if right is None else right.shape
    checker = PanelChecker(xp, product, *shapes, dtype, compute, 5)
    left, other = xp.asarray(left), xp.asarray(left if right is None else right)
    checker.begin()
    for rows in panels(len(other), 9):
        checker.take(rows, other[rows])
    for damage in (0, 100):
        found[10, 3] += damage
        own = [
            float(checker.check(rows, left[rows], found[rows])[0]) for rows in panels(len(found), 9)
        ]
        assert [ratio > 1 for ratio in own] == [i == 1 and damage > 0 for i in range(len(own))]


@pytest.mark.parametrize("keep", ["products", "sum"])
def test_a_wrong_product_ends_the_shard(tmp_path, backend, keep, monkeypatch):
    """A device that errs by one element: nothing is committed."""
    kind = kernels.NumpyKernel if backend == "numpy" else kernels.CublasKernel
    honest = kind.multiply_add

    def erring(self, left, right, out, add):
        honest(self, left, right, out, add)
        out[0, -1] += 0.01

    monkeypatch.setattr(kind, "multiply_add", erring)
    monkeypatch.setattr("shardwise.canary.check", lambda *_: None)  # it would tell first
    with pytest.raises(IntegrityError, match="product of matrix 0 is wrong"):
        computed(tmp_path, factories.noise((3, 37, 37)), backend=backend, keep=keep, shards=1)
    assert not list((tmp_path / "results" / "products").glob("*"))


def test_nonfinite_input_and_overflow_are_named(tmp_path, backend):
    """A matrix with NaN in its last panel, and one whose product float16 cannot hold."""
    left = factories.noise((3, 37, 37), "float32")
    left[2, 36, 36] = np.nan
    with pytest.raises(InputError, match="input: matrix 2 holds NaN or Inf"):
        computed(tmp_path / "nan", left, backend=backend, shards=1)
    left = np.full((2, 37, 37), 1000, "float16")
    with pytest.raises(InputError, match="product of matrix 0 overflows float16"):
        computed(tmp_path / "large", left, backend=backend, shards=1)


@needs_gpu
@pytest.mark.parametrize("keep", ["products", "sum"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
def test_large_panels_are_right_and_within_the_model(tmp_path, monkeypatch, dtype, keep):
    """Panels of megabytes that overlap: right to rounding, in no more than the model says."""
    xp, _ = load_backend("cupy")
    monkeypatch.setattr(sizes, "TILE_BYTES", 2**22)
    monkeypatch.setattr(sizes, "PANEL_BYTES", 2**23)
    monkeypatch.setattr(sizes, "SLAB_BYTES", 2**20)
    make = factories.stack if "int" in dtype else factories.noise
    left = make((2, 2503, 2503), dtype)
    pool = xp.get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.total_bytes()
    made = computed(tmp_path, left, backend="cupy", keep=keep, shards=1)
    assert pool.total_bytes() - before <= sizes.panel_bytes(made.problem, keep, cuda=True)
    device = xp.asarray(wide(left)[:1].astype("float64"))
    exact, moduli = xp.asnumpy(device[0] @ device[0]), xp.asnumpy(abs(device[0]) @ abs(device[0]))
    if keep == "sum":
        return
    found = wide(factories.results(made)[0])
    if "int" in dtype:
        np.testing.assert_array_equal(found, exact)
        return
    relative, absolute = tolerance(2503, 1, dtype, "float32" if dtype == "float16" else dtype)
    assert (abs(found - exact) <= relative * moduli + absolute).all()


@needs_gpu
def test_tf32_is_honoured():
    """Panels are multiplied in tf32 where it is asked for: its error, within its bound."""
    xp, _ = load_backend("cupy")
    kernel = kernels.kernel(xp, Problem(1, (256, 256), "A @ A", "float32"), "tf32")
    one, other = (xp.asarray(factories.noise((256, 256), "float32", seed)) for seed in (0, 1))
    out = xp.zeros_like(one)
    for add, part in ((False, slice(0, 128)), (True, slice(128, 256))):
        kernel.multiply_add(one[:, part], other[part], out, add)
    exact = one.astype("float64") @ other.astype("float64")
    moduli = abs(one).astype("float64") @ abs(other).astype("float64")
    relative, absolute = tolerance(256, 256, "float32", "tf32")
    error = abs(out - exact)
    assert bool((error <= relative * moduli + absolute).all())
    assert float(xp.linalg.norm(error) / xp.linalg.norm(exact)) > 4 * 2**-24 * 256**0.5
