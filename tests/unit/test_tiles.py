"""Products in panels: what whole matrices give, in bounded memory, proven, nothing left behind."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from shardwise import arrays, kernels, multiply, planner, sizes
from shardwise.arrays import StackWriter
from shardwise.bins import BinnedSum
from shardwise.disk import PAGE
from shardwise.errors import InputError, IntegrityError, TryAgain
from shardwise.lanes import HostLane
from shardwise.pipeline import Feed
from shardwise.problem import Problem
from shardwise.proof import PanelChecker
from shardwise.tiles import panels

from tests import factories
from tests.factories import PRODUCTS, REFERENCES, copied, leftovers, noise, results, stack

DTYPES = ("float16", "float32", "float64", "complex64", "int32", "int8")
# Odd sizes, a single row, a single column; the panels of a plane never end where a slab does.
SHAPES = [(3, 17, 17), (2, 37, 9), (2, 9, 37), (2, 1, 41), (2, 41, 1)]
CASES = [(p, s) for p in PRODUCTS for s in SHAPES if p != "A @ A" or s[1] == s[2]]
COLUMNS = 11


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Panels so small that tiny matrices take many."""
    monkeypatch.setattr(sizes, "TILE_BYTES", 32)
    monkeypatch.setattr(sizes, "PANEL_BYTES", 500)
    monkeypatch.setattr(sizes, "SLAB_BYTES", 336)


def factors(product, shape, dtype, shared=False, make=stack):
    """A stack, and the B of ``A @ B``: one a matrix, or one for all."""
    right = make((shape[2], COLUMNS) if shared else (shape[0], shape[2], COLUMNS), dtype, seed=1)
    return make(shape, dtype), right if product == "A @ B" else None


def computed(folder, left, right=None, **over):
    """A plan whose shards have all been multiplied, every product in panels."""
    made = copied(factories.plan(folder, left, right, **over))
    assert sizes.tiled(made.problem)
    for shard_id in made.shards:
        multiply.run_shard(made, shard_id)
    assert not leftovers(made.results.root)
    return made


def wide(array):
    """The same numbers in double precision, or as int64."""
    kinds = {"f": "float64", "c": "complex128"}
    return None if array is None else array.astype(kinds.get(array.dtype.kind, "int64"))


def exact(made, left, right, keep):
    """Products, or sums of shards, in double precision."""
    found = REFERENCES[made.problem.product](wide(left), wide(right))
    if keep == "products":
        return found
    cuts = [row.start for row in made.shards.values()][1:]
    return np.stack([part.sum(axis=0) for part in np.split(found, cuts)])


@pytest.mark.parametrize("keep", ["products", "sum"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("product", "shape"), CASES)
def test_products_in_panels_are_exact_for_whole_numbers(tmp_path, dtype, product, shape, keep):
    """All products of all dtypes, kept or summed, are NumPy's."""
    left, right = factors(product, shape, dtype)
    made = computed(tmp_path, left, right, product=product, keep=keep, shards=2)
    np.testing.assert_array_equal(results(made), exact(made, left, right, keep))


@pytest.mark.parametrize("keep", ["products", "sum"])
@pytest.mark.parametrize("panel", [400, 1500, 10**6])
def test_one_right_factor_for_all_is_streamed_too(tmp_path, monkeypatch, keep, panel):
    """A 2-D B serves every matrix, whether it fits two panels or comes again and again."""
    monkeypatch.setattr(sizes, "PANEL_BYTES", panel)
    left, right = factors("A @ B", (5, 9, 37), "float64", shared=True)
    made = computed(tmp_path, left, right, product="A @ B", keep=keep, shards=2)
    np.testing.assert_array_equal(results(made), exact(made, left, right, keep))


@pytest.mark.parametrize("dtype", DTYPES[:4])
@pytest.mark.parametrize("product", PRODUCTS)
def test_products_of_noise_are_within_their_bounds(tmp_path, dtype, product):
    """Rounding in another order is rounding all the same: γ(k, u) of the product of moduli."""
    left, right = factors(product, (2, 33, 33), dtype, make=noise)
    made = computed(tmp_path, left, right, product=product, shards=1)
    compute, stored = np.finfo("float32" if dtype == "float16" else dtype), np.finfo(dtype)
    parts = 4 if dtype.startswith("complex") else 1
    unit = parts * 34 * float(compute.eps) + (float(stored.eps) if dtype == "float16" else 0)
    size = REFERENCES[product](abs(wide(left)), None if right is None else abs(wide(right)))
    assert (abs(results(made) - exact(made, left, right, "products")) <= unit * size).all()


@pytest.mark.parametrize("reproducible", [True, False])
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64", "int8"])
def test_the_cut_changes_no_bit(tmp_path, dtype, product, reproducible):
    """One shard or five: the same products, and the same merged sum, ``reproducible`` or not."""
    left, right = factors(product, (5, 13, 13), dtype, make=stack if dtype == "int8" else noise)
    products, sums = set(), set()
    for shards in (1, 2, 5):
        over = {"product": product, "shards": shards, "reproducible": reproducible}
        products.add(results(computed(tmp_path / f"p{shards}", left, right, **over)).tobytes())
        made = computed(tmp_path / f"s{shards}", left, right, keep="sum", **over)
        total = BinnedSum(np, made.problem.product_shape, made.problem.product_dtype)
        for row in made.shards.values():
            total.merge(np.load(made.results.product(row.shard)), row.stop - row.start)
        sums.add(total.planes().tobytes())
    assert len(products) == len(sums) == 1


@pytest.mark.parametrize("keep", ["products", "sum"])
def test_slabs_change_no_bit(tmp_path, monkeypatch, keep):
    """Pieces of any size, larger or smaller than a panel: the same file."""
    left, right = factors("A @ B", (3, 40, 13), "float32", make=noise)
    seen = set()
    for slab in (48, 1000, 10**6):
        monkeypatch.setattr(sizes, "SLAB_BYTES", slab)
        made = computed(tmp_path / str(slab), left, right, product="A @ B", keep=keep, shards=1)
        seen.add(np.load(made.results.product("00000")).tobytes())
    assert len(seen) == 1


@pytest.mark.parametrize("product", PRODUCTS)
def test_slabs_are_given_back_before_the_next_shard_is_read(tmp_path, monkeypatch, product):
    """Its copy is made in them: slabs of its own beside them are not in the plan."""
    said, release = [], Feed.release

    def noted(self):
        release(self)
        said.append("released")

    monkeypatch.setattr(Feed, "release", noted)
    left, right = factors(product, (2, 17, 17), "float32")
    made = factories.plan(tmp_path, left, right, product=product, materialize=False, shards=1)
    session = multiply.Session(made, 0)
    session.finish(session.begin("00000"), lambda: said.append("read"))
    assert said == ["released", "released", "released", "read"]


@pytest.mark.parametrize("keep", ["products", "sum"])
def test_panels_lie_in_slabs_as_in_the_file(tmp_path, monkeypatch, keep):
    """What is written begins at the same byte of a page in memory, for direct I/O."""
    monkeypatch.setattr(sizes, "SLAB_BYTES", 2 * PAGE)
    places, write_at = [], StackWriter.write_at

    def noted(self, offset, views):
        places.append((views[0].ctypes.data - offset) % PAGE)
        write_at(self, offset, views)

    monkeypatch.setattr(StackWriter, "write_at", noted)
    left, _ = factors("A @ A", (3, 61, 61), "float32")
    made = computed(tmp_path, left, keep=keep, shards=1)
    np.testing.assert_array_equal(results(made), exact(made, left, None, keep))
    assert len(places) > 5
    assert set(places) == {0}


@pytest.mark.parametrize("dtype", ["int32", "float32", "complex128"])
def test_a_task_with_little_memory_has_slabs_enough(tmp_path, dtype):
    """In two slabs each way, the bits are those of the plan's."""
    left, _ = factors("A @ A", (3, 31, 31), dtype)
    made = copied(factories.plan(tmp_path, left, keep="sum", shards=1))
    multiply.run_shard(made, "00000", memory=1)
    np.testing.assert_array_equal(results(made), exact(made, left, None, "sum"))


def refusal(made, error):
    """The message that refuses a shard, which leaves nothing behind."""
    with pytest.raises(error) as caught:
        multiply.run_shard(made, "00000")
    assert not made.results.product("00000").exists()
    assert not made.results.receipt("00000").exists()
    assert not leftovers(made.results.root)
    return str(caught.value)


@pytest.mark.parametrize("keep", ["products", "sum"])
@pytest.mark.parametrize("row", [0, 16])
@pytest.mark.parametrize("product", PRODUCTS)
def test_nonfinite_input_is_named(tmp_path, product, row, keep):
    """NaN in the first or the last panel of a matrix names it."""
    left, right = factors(product, (3, 17, 17), "float32")
    left[1, row, 5] = np.nan
    made = copied(factories.plan(tmp_path, left, right, product=product, keep=keep, shards=1))
    assert "input: matrix 1 holds NaN or Inf" in refusal(made, InputError)


@pytest.mark.parametrize("shared", [True, False])
def test_a_nonfinite_right_factor_is_named(tmp_path, shared):
    """Inf in the last panel of B is told from one in the input."""
    left, right = factors("A @ B", (3, 17, 40), "float32", shared=shared)
    right[..., 39, 2] = np.inf
    made = copied(factories.plan(tmp_path, left, right, product="A @ B", shards=1))
    told = "right: the matrix holds" if shared else "right: matrix 0 holds"
    assert told in refusal(made, InputError)


@pytest.mark.parametrize("keep", ["products", "sum"])
def test_nonfinite_input_is_computed_where_it_is_allowed(tmp_path, keep):
    """NaN spreads as arithmetic has it, and proves nothing wrong."""
    left, _ = factors("A @ A", (3, 17, 17), "float64")
    left[1, 2, 3] = np.nan
    made = computed(tmp_path, left, nonfinite="allow", keep=keep, shards=1)
    np.testing.assert_array_equal(results(made), exact(made, left, None, keep))


@pytest.mark.parametrize(("dtype", "value"), [("float16", 300), ("float32", 1e25)])
@pytest.mark.parametrize("product", ["A @ A", "A.T @ A", "A @ A.T"])
def test_overflow_is_named(tmp_path, product, dtype, value):
    """A product that overflows from finite factors names its matrix and the dtype."""
    left, _ = factors(product, (3, 17, 17), dtype)
    left[2] = value
    made = copied(factories.plan(tmp_path, left, product=product, shards=1))
    assert f"the product of matrix 2 overflows {dtype}" in refusal(made, InputError)


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize(("value", "fits"), [(2**28, True), (2**30, False)])
def test_integers_are_exact_or_refused(tmp_path, product, value, fits):
    """The bound of int64 is that of the whole matrix, wherever its largest element lies."""
    left, right = factors(product, (2, 17, 17), "int64")
    left[1, 16, 16] = value
    if right is not None:
        right[1, 16, 3] = value
    made = copied(factories.plan(tmp_path, left, right, product=product, shards=1))
    if fits:
        multiply.run_shard(made, "00000")
        np.testing.assert_array_equal(results(made), exact(made, left, right, "products"))
    else:
        assert "the product of matrix 1 may not fit int64" in refusal(made, InputError)


@pytest.mark.parametrize("keep", ["products", "sum"])
@pytest.mark.parametrize("dtype", ["float16", "float64", "complex64", "int32"])
@pytest.mark.parametrize("product", PRODUCTS)
def test_a_wrong_product_is_found(tmp_path, monkeypatch, product, dtype, keep):
    """One element of one panel of the second product that is off by little is found and named."""
    left, right = factors(product, (3, 17, 17), dtype)
    made = copied(factories.plan(tmp_path, left, right, product=product, keep=keep, shards=1))
    name = "Integers" if "int" in dtype else "NumpyKernel"
    kind, steps = getattr(kernels, name), []
    honest = kind.multiply_add

    def erring(self, one, other, out, add):
        honest(self, one, other, out, add)
        steps.append(1)
        if len(steps) == wrong:
            out[-1, 0] += 1

    monkeypatch.setattr(kind, "multiply_add", erring)
    wrong = 0
    multiply.run_shard(made, "00000")
    own, other = sizes.panel_rows(made.problem)
    one = -(-made.problem.product_shape[0] // own) * -(-sizes.streamed(made.problem)[0] // other)
    assert len(steps) == 3 * one
    assert one >= 4
    made.results.product("00000").unlink()
    made.results.receipt("00000").unlink()
    # The first panel of the second matrix, in whichever order they are computed.
    wrong = 1 + (one if keep == "products" else -(-sizes.streamed(made.problem)[0] // other))
    steps.clear()
    assert "the product of matrix 1 is wrong: Freivalds'" in refusal(made, IntegrityError)


@pytest.mark.parametrize("keep", ["products", "sum"])
@pytest.mark.parametrize("product", PRODUCTS)
def test_a_damaged_shard_is_refused(tmp_path, product, keep):
    """A bit that flips anywhere in the copy is found, although panels are read again."""
    left, right = factors(product, (3, 17, 17), "int32")
    made = copied(factories.plan(tmp_path, left, right, product=product, keep=keep, shards=1))
    path = made.results.shard("00000")
    whole = path.read_bytes()
    for at in (4096, 4096 + (len(whole) - 4096) // 2, len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert "is damaged: its checksum differs" in refusal(made, IntegrityError)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("byte_order", ["<", ">"])
@pytest.mark.parametrize("converted", [10, 70, 500, 10**6])
@pytest.mark.parametrize("chunk", [40, 10**6])
def test_the_order_of_a_file_changes_no_bit(
    tmp_path, monkeypatch, order, byte_order, converted, chunk
):
    """Read in place, in whatever order the elements lie; large ones a few rows at a time."""
    monkeypatch.setattr(sizes, "CONVERTED_BYTES", converted)
    monkeypatch.setattr(arrays, "CHUNK_BYTES", chunk)
    left = noise((3, 17, 17), "float32")
    plain = computed(tmp_path / "plain", left, shards=1)
    path = tmp_path / "other.npy"
    np.save(path, np.asarray(left, f"{byte_order}f4", order=order))
    other = computed(tmp_path / "other", None, input=str(path), materialize=False, shards=1)
    assert results(other).tobytes() == results(plain).tobytes()


def test_the_receipt_says_that_it_was_in_panels(tmp_path):
    """``tiled`` tells products in panels, whose bits differ, from others."""
    made = computed(tmp_path, stack((2, 17, 17)), shards=1)
    text = made.results.receipt("00000").read_text()
    assert '"tiled": true' in text
    assert '"method": "freivalds"' in text


def test_rows_that_no_panel_holds_are_refused_by_the_plan(tmp_path, monkeypatch):
    """The message has both figures."""
    monkeypatch.setattr(sizes, "PANEL_BYTES", 100)
    with pytest.raises(InputError, match=r"at most 100 B, but a row takes 132 B"):
        factories.plan(tmp_path, stack((2, 33, 33)))


def test_honest_products_near_the_largest_number_are_not_refused(tmp_path):
    """No device is suspected where every product is finite and right."""
    left = np.full((1, 17, 17), 3e153)
    made = computed(tmp_path, left, shards=1)
    np.testing.assert_allclose(results(made), left @ left, rtol=1e-14)


@pytest.mark.parametrize("spread", [1e-300, 1e-290])
def test_honest_products_of_the_smallest_numbers_are_not_refused(tmp_path, spread):
    """Large times tiny: what the check scales does not lose its digits unseen."""
    left, right = noise((1, 17, 17)) / spread, noise((1, 17, 17), seed=1) * spread / 8
    computed(tmp_path, left, right, product="A @ B", shards=1)


def test_panels_are_about_equal_and_whole_tiles(monkeypatch):
    """Heights follow from dtype and shape: multiples of 128 where 128 rows fit, down to 1."""
    monkeypatch.setattr(sizes, "PANEL_BYTES", 512 * 2**20)
    problem = Problem(1, (32_771, 32_771), "A @ A", "float32")
    assert sizes.panel_rows(problem) == (3712, 3712)
    assert sizes.panel_rows(replace(problem, dtype="float16")) == (3712, 3712)
    assert sizes.panel_rows(replace(problem, dtype="int8")) == (1920, 1920)
    long = Problem(1, (7, 50_000_017), "A @ B", "float32", right=(50_000_017, 3))
    assert sizes.panel_rows(long)[0] == 2
    assert sizes.panel_rows(replace(long, left=(7, 130_000_001), right=(130_000_001, 3)))[0] == 1
    assert panels(7, 3) == [slice(0, 3), slice(3, 6), slice(6, 7)]


def test_the_model_counts_every_panel(monkeypatch):
    """Device memory with distinct primes for all lengths, term by term."""
    monkeypatch.setattr(sizes, "PANEL_BYTES", 20_000_000)
    monkeypatch.setattr(sizes, "CHECK_BYTES", 0)
    problem = Problem(3, (20_011, 10_007), "A @ B", "float64", right=(10_007, 5003))
    own, other = sizes.panel_rows(problem)
    assert (own, other) == (128, 384)
    panels_of = 2 * 8 * (own * 10_007 + other * 5003 + own * 5003)
    proof = 8 * 2 * 10_007 * 10 + 3 * 8 * 10_007
    assert sizes.panel_bytes(problem, "products", cuda=True) == panels_of + proof
    host = 8 * own * 5003
    assert sizes.panel_bytes(problem, "products", cuda=False) == panels_of + proof + host
    planes = own * 5003 * (5 * 8 + 2) - 8 * own * 5003
    assert sizes.panel_bytes(problem, "sum", cuda=True) == panels_of + proof + planes
    assert sizes.device_memory(problem, 3, "sum") == sizes.DEVICE_BYTES + panels_of + proof + planes


MEASURE = """
import resource, sys
from pathlib import Path
from shardwise import multiply, planfile, sizes
sizes.TILE_BYTES = sizes.PANEL_BYTES = 2 ** 22
sizes.SLAB_BYTES = 2 ** 20
plan = planfile.load(Path(sys.argv[1]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
multiply.run_shard(plan, "00000")
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
sys.stdout.write(str((after - before) * 1024))
"""


@pytest.mark.parametrize("keep", ["products", "sum"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_panels_stay_within_the_model(tmp_path, monkeypatch, keep, dtype):
    """A real process holds no more than the model says beside the interpreter."""
    monkeypatch.setattr(sizes, "TILE_BYTES", 2**22)
    monkeypatch.setattr(sizes, "PANEL_BYTES", 2**22)
    monkeypatch.setattr(sizes, "SLAB_BYTES", 2**20)
    left = stack((2, 2503, 2503), dtype)
    made = factories.plan(tmp_path, left, keep=keep, materialize=False, shards=1)
    assert sizes.tiled(made.problem)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(made.results.plan)],
        env={"PYTHONPATH": str(factories.SCRIPTS), "OPENBLAS_NUM_THREADS": "2"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # BLAS has buffers of its own, 32 MiB a thread, which the interpreter's share covers.
    allowed = sizes.task_memory(made.problem, 2, keep, cuda=False) - sizes.PYTHON_BYTES
    assert int(done.stdout) <= allowed + 64 * 2**20


class _Full(HostLane):
    """A lane whose memory is too small, of a device of some size."""

    def __init__(self, total):
        super().__init__()
        self._total = total

    def zeros(self, shape, dtype):
        raise MemoryError

    def free(self):
        return "the device has less"

    def total(self):
        return self._total


@pytest.mark.parametrize("tile", [32, 10**9])
@pytest.mark.parametrize(
    ("total", "error", "told"),
    [
        (10**6, InputError, r"needs .*, but the device has .* in all"),
        (10**12, TryAgain, r"needs .*, but the device has less"),
        (None, TryAgain, r"needs .*, but the device has less"),
    ],
)
def test_want_of_memory_says_whether_to_wait(tmp_path, monkeypatch, tile, total, error, told):
    """What does not fit the whole device is bad input; what does not fit now is tried again."""
    made = copied(factories.plan(tmp_path, stack((2, 17, 17)), shards=1))
    monkeypatch.setattr(sizes, "TILE_BYTES", tile)
    monkeypatch.setattr(multiply, "HostLane", lambda: _Full(total))
    with pytest.raises(error, match=told):
        multiply.run_shard(made, "00000")
    assert not leftovers(made.results.root)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.parametrize("product", PRODUCTS)
def test_the_check_of_panels_is_that_of_the_whole(product, dtype):
    """A product that is off by a hundred times its tolerance fails; an honest one passes."""
    left, right = (
        x if x is None else x[0] for x in factors(product, (1, 29, 29), dtype, make=noise)
    )
    honest = REFERENCES[product](left, right)
    checker = PanelChecker(np, product, left.shape, right if right is None else right.shape,
                           dtype, dtype, 7)  # fmt: skip
    checker.begin()
    other = left if right is None else right
    for rows in panels(len(other), 8):
        checker.take(rows, other[rows])
    for damage in (0, 100 * 29 * float(np.finfo(dtype).eps) * 29):
        found = honest.copy()
        found[20, 3] += damage * 10
        ratios = [float(checker.check(rows, left[rows], found[rows])[0]) for rows in panels(29, 8)]
        assert [ratio <= 1 for ratio in ratios] == [True, True, not damage, True]


def test_planning_tells_the_memory_of_panels():
    """A plan of large matrices asks for panels, not for matrices."""
    problem = Problem(2, (60_013, 60_013), "A @ A", "float32")
    with pytest.MonkeyPatch.context() as real:
        real.setattr(sizes, "TILE_BYTES", 2 * 2**30)
        real.setattr(sizes, "PANEL_BYTES", 512 * 2**20)
        real.setattr(sizes, "SLAB_BYTES", 16 * 2**20)
        assert sizes.tiled(problem)
        planner._refuse_rows(problem)
        assert sizes.device_memory(problem, 2, "products") < 5 * 2**30
        assert sizes.device_memory(problem, 2, "sum") < 9 * 2**30
        assert sizes.task_memory(problem, 2, "sum", cuda=True) < 12 * 2**30
