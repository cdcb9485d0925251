"""Products and their proofs: the same tests on NumPy and, if there is a GPU, on cupy."""

import gc
import os

import numpy as np
import pytest
from shardwise.errors import DeviceFailed, IntegrityError
from shardwise.files import pieces
from shardwise.multiply import job
from shardwise.numerics import gemm, tolerances
from shardwise.plan import memory
from shardwise.plan import problem as problems
from shardwise.records import receipts

from tests import factories
from tests.factories import save, wide
from tests.gpu.conftest import needs_gpu
from tests.kernels import exactly, modulus, multiplied, problem_of

NUMBERS = (*factories.FLOATS, "uint8", "int64")


def factors(product, shape, dtype):
    """A stack, and its B if any; whole numbers for integers, else numbers that round."""
    make = factories.stack if "int" in dtype else factories.noise
    rows = factories.right_rows(product, *shape[1:])
    return make(shape, dtype), make((shape[0], rows, 7), dtype, seed=1) if rows else None


def check_kernel(xp, product, shape, dtype):
    """Every product of a batch is right, and the same to the bit at any place in it."""
    pair, places = factors(product, (2, *shape), dtype), np.arange(7) % 2
    found, compute = multiplied(xp, product, *(x if x is None else x[places] for x in pair))
    np.testing.assert_array_equal(found, found[places])
    exact, moduli = exactly(product, *pair, xp)
    if "int" in dtype:
        np.testing.assert_array_equal(found[:2], exact)
        return
    problem = problem_of(product, *pair)
    bound = tolerances.product_tolerance(problem.factor_shapes[0][1], 1, dtype, compute)
    assert (modulus(wide(found[:2]) - exact) <= bound[0] * moduli + bound[1]).all()
    if gemm.symmetric(problem):
        other = factories.TURNED["H" if "H" in product else "T"](found[0])
        np.testing.assert_array_equal(found[0], other)


# Many, few and one matrix per call; rows that are aligned and rows that are not.
@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("shape", [(8, 8), (65, 65), (260, 260), (9, 2000)])
@pytest.mark.parametrize("product", factories.PRODUCTS)
def test_kernels_are_right_wherever_a_matrix_lies(xp, product, shape, dtype):
    """Of all dtypes, against products in double precision."""
    check_kernel(xp, product, shape[:1] * 2 if product == "A @ A" else shape, dtype)


@needs_gpu
@pytest.mark.parametrize("dtype", factories.FLOATS)
@pytest.mark.parametrize("shape", [(2049, 515), (515, 2051), (2048, 2048)])
@pytest.mark.parametrize(
    "product", [p for p in factories.PRODUCTS if p not in ("A @ A", "A.T @ B")]
)
def test_large_kernels_are_right(cupy, product, shape, dtype):
    """Large products, by a rank-k update of symmetric and Hermitian ones, and awkward rows."""
    check_kernel(cupy, product, shape, dtype)


def one_shard(folder, left, **over):
    """A plan of one shard, computed in place."""
    over |= {"shards": 1, "materialize": False}
    return factories.computed(factories.plan(folder, left, **over))


@pytest.mark.parametrize("keep", ["products", "sum"])
@pytest.mark.parametrize("product", ["A @ A", "A.T @ A", "A @ B"])
def test_bits_do_not_depend_on_slots_and_batches(tmp_path, backend, product, keep, monkeypatch):
    """Many small parts, batches of one call, one slot: the same file, with the same checksums."""
    left, right = factors(product, (2000, 9, 9), "float32")
    over = {"product": product, "keep": keep, "backend": backend, "right": right}
    written = set()
    for number, (part, batch, slots) in enumerate(
        [(2**24, 2**28, 8), (4096, 2**28, 2), (10_000, 2**18, 8), (2**24, 2**18, 1)]
    ):
        monkeypatch.setattr(pieces, "PART_BYTES", part)
        monkeypatch.setattr(memory.Budget, "slots", lambda *_, slots=slots: slots)
        monkeypatch.setattr(memory, "HOST_BATCH_BYTES", batch)
        # The size of a call decides the bits, so it is fixed; a batch has several calls.
        monkeypatch.setattr(problems.Problem, "call_matrices", 256)
        monkeypatch.setattr(memory, "BATCH_BYTES", batch)
        made = one_shard(tmp_path / str(number), left, **over)
        receipt = factories.receipt(made)
        receipts.check_elements(factories.file(made, "product"), receipt.file)
        found = factories.products(made).tobytes()
        written.add((found, receipt.input_checksum, receipt.right_checksum))
    assert len(written) == 1


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex128", "int64"])
@pytest.mark.parametrize("materialize", [True, False])
def test_a_file_in_any_order_and_many_files_give_the_same(tmp_path, backend, dtype, materialize):
    """In any byte or memory order, in one file or many, copied or in place: the same results."""
    left, found = factories.stack((7, 30, 30), dtype), set()
    stacks = {
        "big-endian.npy": left.astype(left.dtype.newbyteorder(">")),
        "Fortran.npy": np.asfortranarray(left),
        "C.npy": left,
        **{f"many/{i}.npy": matrix for i, matrix in enumerate(left)},
    }
    for name, array in stacks.items():
        save(tmp_path / name, array)
    for name in ("big-endian.npy", "Fortran.npy", "C.npy", "many"):
        over = {"input": str(tmp_path / name), "materialize": materialize, "backend": backend}
        made = factories.computed(factories.plan(tmp_path / f"of {name}", shards=2, **over))
        for shard in made.shards:
            receipt = factories.receipt(made, shard)
            receipts.check_elements(factories.file(made, "product", shard), receipt.file)
        found.add((factories.products(made).tobytes(), receipt.input_checksum))
    assert len(found) == 1


@needs_gpu
@pytest.mark.parametrize("cut", [False, True])
def test_a_file_that_ends_early_is_named(tmp_path, cut):
    """A file that is cut off while it is read, or a copy with a changed bit: nothing is written."""
    over = {"shards": 1, "backend": "cupy", "materialize": not cut}
    made = factories.plan(tmp_path, factories.noise((64, 64, 64)), **over)
    begun = job.ShardJob(job.Session(made), "00000").begin()
    if cut:
        assert begun.factors[0].extents(0, 10)  # its header is read
        os.truncate(tmp_path / "input.npy", 10_000)
    else:
        factories.flip(factories.file(made, "shard"), 5000)
    with pytest.raises(IntegrityError, match=r"changed while|became shorter|is damaged"):  # noqa: PT012
        begun.compute()
        begun.finish()
    assert not factories.file(made, "product").exists()


@needs_gpu
def test_a_full_device_gets_smaller_batches_then_says_try_again(cupy, tmp_path, monkeypatch):
    """Batches shrink while memory is short, with the same bits; then exit 75 with the figure."""
    left, pool = factories.noise((600, 64, 64), "float32"), cupy.get_default_memory_pool()
    expected = factories.products(one_shard(tmp_path / "free", left, backend="cupy")).tobytes()
    monkeypatch.setattr(problems, "MOST_IN_CALL", 256)
    try:
        for room in (40 * 2**20, 2**20):
            gc.collect()
            pool.free_all_blocks()  # a limit does not count what the pool has already
            pool.set_limit(size=pool.used_bytes() + room)
            if room > 2**20:
                short = one_shard(tmp_path / "short", left, backend="cupy")
                assert factories.products(short).tobytes() == expected
        with pytest.raises(DeviceFailed, match=r"Out of memory"):
            one_shard(tmp_path / "full", left, backend="cupy")
    finally:
        pool.set_limit(size=0)


LOST = """
def own(xp, block):
    if hasattr(xp, "RawKernel"):
        crash = xp.RawKernel('extern "C" __global__ void crash(int* p) { p[0] = 1; }', "crash")
        crash((1,), (1,), (0,))
    return block + 0
"""


@needs_gpu
def test_a_device_lost_in_mid_run_says_try_again(tmp_path):
    """A fault that no later call survives, as of a lost device: exit 75, nothing committed."""
    (tmp_path / "mine.py").write_text(LOST)
    over = {"product": f"{tmp_path / 'mine.py'}:own", "backend": "cupy", "materialize": False}
    made = factories.plan(tmp_path, factories.noise((4, 8, 8), "float32"), shards=1, **over)
    done = factories.run("multiply", "--plan", made.results.plan, "--shard", "00000")
    assert (done.returncode, "illegal" in done.stderr.lower()) == (75, True), done.stderr
    assert not any(factories.file(made, kind).exists() for kind in ("product", "receipt"))
    assert not factories.leftovers(made.results.root)


@needs_gpu
@pytest.mark.parametrize("keep", ["products", "sum"])
@pytest.mark.parametrize(("dtype", "dim", "precision"), [
    ("float16", 65, "ieee"), ("float32", 32, "ieee"), ("float32", 700, "ieee"),
    ("float32", 32, "tf32x3"), ("float32", 2050, "tf32x3"), ("complex64", 701, "tf32x3"),
    ("complex128", 129, "ieee"), ("int16", 40, "ieee"), ("int64", 40, "ieee"),
    ("float64", 2049, "ieee"), ("float32", 4096, "ieee"), ("float32", 4100, "ieee"),
])  # fmt: skip
def test_device_memory_is_what_the_plan_says(cupy, tmp_path, dtype, dim, precision, keep):
    """All that is ever taken from the device is within the plan's figure."""
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.total_bytes()
    left, _ = factors("A.T @ A", (24 if dim > 4000 else 5, dim, dim), dtype)  # or many batches
    over = {"keep": keep, "product": "A.T @ A", "precision": precision, "backend": "cupy"}
    if dim == 4100:  # weights of 0, but not in each batch
        over["weights"] = str(save(tmp_path / "w.npy", np.arange(24.0) % 23))
    made = one_shard(tmp_path, left, **over)
    assert pool.total_bytes() - before <= made.shards["00000"].device_memory - memory.DEVICE_BYTES


@pytest.mark.parametrize("keep", ["products", "sum"])
@pytest.mark.parametrize(("dtype", "value"), [
    ("float16", np.nan), ("float16", np.inf), ("float16", 1000), ("float32", 1e25),
    ("float64", 1e200), ("complex64", 1e25),
])  # fmt: skip
def test_nonfinite_input_and_overflow_are_refused_by_name(tmp_path, backend, dtype, value, keep):
    """Unless they are allowed. The message names the matrix, and of an overflow the dtype."""
    over = {"backend": backend, "keep": keep, "materialize": False, "shards": 1}
    for place, shape, over["verify"] in ((0, (9, 8, 8), True), (2, (3, 300, 300), False)):
        left = factories.noise(shape, dtype)
        left[place, 3] = value
        made = factories.plan(tmp_path / str(place), left, **over)
        what = f"matrix {place} holds NaN or Inf"
        if np.isfinite(value):
            what = f"the product of matrix {place} overflows {dtype}"
        assert what in factories.refused(made)
        made = factories.plan(tmp_path / str(place), left, nonfinite="allow", **over)
        finite = np.isfinite(factories.products(factories.computed(made))).all(axis=(1, 2))
        assert np.flatnonzero(~finite).tolist() == [len(finite) - 1 if place else 0]
