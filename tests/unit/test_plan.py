"""The arithmetic of the plan, against brute force."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise import plan
from shardwise.plan import MIB, Problem

# Distinct primes: a lost or swapped dimension changes every count.
M, K, P, N = 3, 5, 7, 11
ITEM = {"float16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16, "int8": 1}
PRODUCT_ITEM = {**ITEM, "int8": 8}
SUM_ITEM = {
    **{"float16": 8, "float32": 8, "float64": 8},
    **{"complex64": 16, "complex128": 16, "int8": 8},
}
FACTORS = {
    "A @ A": (K, K, K),
    "A.T @ A": (K, M, K),
    "A @ A.T": (M, K, M),
    "A @ B": (M, K, P),
}


def problem(product, dtype="float32", shared=False, matrices=N):
    """A problem of prime dimensions."""
    left = (K, K) if product == "A @ A" else (M, K)
    right = (K, P) if product == "A @ B" else None
    return Problem(matrices, left, product, dtype, right, shared)


@given(st.integers(1, 400), st.data())
def test_every_matrix_is_in_exactly_one_shard(matrices, data):
    """The shards hold 0 … N-1 once each, in order, and their sizes differ by at most one."""
    shards = data.draw(st.integers(1, matrices))
    runs = plan.cut(matrices, shards)
    held = [i for start, stop in runs for i in range(start, stop)]
    sizes = {stop - start for start, stop in runs}
    assert held == list(range(matrices))
    assert len(runs) == shards
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


@pytest.mark.parametrize(("matrices", "shards"), [(5, 6), (5, 0), (5, -1), (1, 2)])
def test_impossible_cuts_are_refused(matrices, shards):
    """No shard is empty, and there is at least one."""
    with pytest.raises(ValueError, match=f"cannot cut {matrices} matrices into {shards}"):
        plan.cut(matrices, shards)


@given(st.integers(1, 5000), st.integers(1, 10**6), st.integers(1, 10**9))
def test_auto_makes_the_fewest_shards_that_fit(matrices, matrix_bytes, shard_bytes):
    """Under auto the count is the least with total/count within shard_bytes, up to the limits."""
    total = matrices * matrix_bytes
    shards = plan.shard_count(matrices, total, "auto", shard_bytes)
    limit = min(matrices, plan.MAX_AUTO_SHARDS)
    assert 1 <= shards <= limit
    assert shards * shard_bytes >= total or shards == limit
    assert shards == 1 or (shards - 1) * shard_bytes < total


@given(st.integers(1, 2000), st.integers(1, 64), st.integers(1, 4096))
def test_auto_shards_stay_within_shard_bytes(matrices, matrix_bytes, shard_bytes):
    """No shard exceeds shard_bytes, unless one matrix does or the count is at its limit."""
    shards = plan.shard_count(matrices, matrices * matrix_bytes, "auto", shard_bytes)
    largest = max(stop - start for start, stop in plan.cut(matrices, shards)) * matrix_bytes
    if shards < min(matrices, plan.MAX_AUTO_SHARDS):
        # One matrix more than the mean is what an uneven cut costs.
        assert largest < shard_bytes + matrix_bytes


def test_a_number_of_shards_is_taken_as_it_is():
    """A count in the config wins over shard_bytes, even past the limit of auto."""
    assert plan.shard_count(10**6, 10**12, 5000, 1) == 5000


def test_auto_keeps_the_number_of_jobs_payable():
    """A petabyte in shards of a byte is still at most a thousand shards."""
    assert plan.shard_count(10**9, 10**15, "auto", 1) == plan.MAX_AUTO_SHARDS


@pytest.mark.parametrize(
    ("count", "first", "last"),
    [(1, "00000", "00000"), (100_000, "00000", "99999"), (100_001, "000000", "100000")],
)
def test_ids_are_zero_padded_decimals(count, first, last):
    """Ids have five digits, or as many as the largest needs, and sort like numbers."""
    ids = plan.shard_ids(count)
    assert (ids[0], ids[-1], len(ids)) == (first, last, count)
    assert ids == sorted(ids)


@pytest.mark.parametrize("product", FACTORS)
@pytest.mark.parametrize("dtype", ITEM)
def test_bytes_of_one_problem(product, dtype):
    """Bytes of A, B and the product follow from shapes and element sizes alone."""
    own, (m, k, p) = problem(product, dtype), FACTORS[product]
    rows, columns = own.left
    assert own.factor_shapes == ((m, k), (k, p))
    assert own.product_shape == (m, p)
    assert own.matrix_bytes == rows * columns * ITEM[dtype]
    assert own.product_bytes == m * p * PRODUCT_ITEM[dtype]
    assert own.right_bytes == (K * P * ITEM[dtype] if product == "A @ B" else 0)
    assert own.flop == 2 * m * k * p
    assert own.sum_item == SUM_ITEM[dtype]


@pytest.mark.parametrize("product", FACTORS)
@pytest.mark.parametrize("dtype", ITEM)
@pytest.mark.parametrize("keep", ["products", "sum"])
def test_the_table_counts_every_byte(product, dtype, keep):
    """Rows add up to the whole input and, for products, to the whole output."""
    own = problem(product, dtype)
    rows = plan.table(own, 4, keep, cuda=False)
    m, _, p = FACTORS[product]
    whole = sum(own.left[0] * own.left[1] * ITEM[dtype] for _ in range(N))
    assert sum(row.bytes for row in rows) == whole
    made = [row.product_bytes for row in rows]
    if keep == "sum":
        assert made == [m * p * SUM_ITEM[dtype]] * 4
    else:
        assert made == [(row.stop - row.start) * m * p * PRODUCT_ITEM[dtype] for row in rows]
    assert [row.memory for row in rows] == [
        plan.task_memory(own, row.stop - row.start, keep, cuda=False) for row in rows
    ]


def held_by_a_task(own, count, keep, slab, checked):
    """Bytes that a task must hold at least, array by array, no formula of plan.py used."""
    (m, k, p), (rows, columns) = FACTORS[own.product], own.left
    held = slab * rows * columns * ITEM[own.dtype]  # what is read
    if own.dtype == "int8":
        held += slab * rows * columns * 8  # widened for the product
    if own.product == "A @ B":
        held += (1 if own.shared_right else slab) * K * P * ITEM[own.dtype]
        if own.dtype == "int8":
            held += (1 if own.shared_right else slab) * K * P * 8
    held += slab * m * p * PRODUCT_ITEM[own.dtype]
    held += checked * SUM_ITEM[own.dtype] * (m * k + k * p + m * p)
    if keep == "sum":
        held += 2 * m * p * SUM_ITEM[own.dtype]
    return held


@pytest.mark.parametrize("product", FACTORS)
@pytest.mark.parametrize("dtype", ITEM)
@pytest.mark.parametrize("keep", ["products", "sum"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("unit", [1, 5000])
def test_a_task_is_given_what_it_holds(monkeypatch, product, dtype, keep, shared, unit):
    """Beside the fixed costs, the model covers every array of a task at once."""
    monkeypatch.setattr(plan, "SLAB_BYTES", unit)
    monkeypatch.setattr(plan, "CHECK_BYTES", unit)
    own = problem(product, dtype, shared)
    slab = min(N, plan.slab_matrices(own))
    checked = min(N, plan.check_matrices(own))
    variable = plan.task_memory(own, N, keep, cuda=False) - plan.PYTHON_BYTES
    assert variable >= held_by_a_task(own, N, keep, slab, checked)


def test_widened_integers_are_counted():
    """Narrow integers whose products are tiny: the int64 copies of A and B are the memory."""
    own = Problem(10**6, (1, 10_007), "A @ B", "int8", (10_007, 1))
    slab = plan.slab_matrices(own)
    widened = slab * (10_007 + 10_007) * 8
    variable = plan.task_memory(own, 10**6, "products", cuda=False) - plan.PYTHON_BYTES
    assert variable >= widened + slab * (own.matrix_bytes + own.right_bytes)


def test_a_device_costs_host_memory():
    """A task that may use CUDA asks for its context on top."""
    own = problem("A @ B")
    with_device = plan.task_memory(own, N, "sum", cuda=True)
    assert with_device - plan.task_memory(own, N, "sum", cuda=False) == plan.CUDA_BYTES


@given(st.sampled_from(sorted(FACTORS)), st.sampled_from(sorted(ITEM)), st.integers(1, 10**9))
def test_memory_is_bounded_by_slabs_not_by_the_stack(product, dtype, matrices):
    """However many small matrices a shard holds, its task stays under 2 GiB."""
    own = problem(product, dtype, matrices=matrices)
    for keep in ("products", "sum"):
        assert plan.task_memory(own, matrices, keep, cuda=True) < 2048 * MIB
    assert plan.reduce_memory(own, 1) == plan.reduce_memory(replace(own, matrices=1), 1)


@pytest.mark.parametrize("product", FACTORS)
@pytest.mark.parametrize("left", [(K, K), (50_021, 50_021)])
def test_one_huge_matrix_is_a_slab(product, left):
    """A matrix larger than a slab still goes through, alone."""
    own = replace(
        problem(product, "float64"),
        left=left,
        right=(left[1], P) if product == "A @ B" else None,
    )
    bytes_held = max(own.matrix_bytes + own.right_bytes, own.product_bytes)
    assert plan.slab_matrices(own) == max(1, 64 * MIB // bytes_held)
    assert plan.check_matrices(own) >= 1
    assert plan.task_memory(own, 1, "products", cuda=False) > bytes_held


@pytest.mark.parametrize("dtype", ITEM)
@pytest.mark.parametrize("ranks", [1, 2, 13])
def test_the_reduce_is_given_what_its_ranks_hold(dtype, ranks):
    """All ranks together hold a block each, the accumulators, and the root the whole and a mean."""
    own = problem("A @ B", dtype)
    result = M * P * SUM_ITEM[dtype]
    accumulators, whole, mean = 2 * result, result, result
    held = ranks * plan.SLAB_BYTES + accumulators + whole + mean
    asked = plan.reduce_memory(own, ranks)
    assert asked - ranks * plan.PYTHON_BYTES >= held
    assert asked - plan.reduce_memory(own, ranks - 1) == plan.PYTHON_BYTES + 2 * plan.SLAB_BYTES


@pytest.mark.parametrize("dtype", ITEM)
def test_copying_holds_three_slabs(dtype):
    """Each slab that is under way has a buffer: whole pieces of the checksum, or one matrix."""
    own = replace(problem("A @ A", dtype), left=(20_011, 20_011), matrices=100)
    assert plan.copy_matrices(own) == 1
    assert plan.piece_bytes(own) == own.matrix_bytes
    assert plan.copy_memory(own) - plan.PYTHON_BYTES >= 3 * 20_011 * 20_011 * ITEM[dtype]
    for side in (1, 7, 500, 2000):
        own = replace(problem("A @ A", dtype), left=(side, side), matrices=10**9)
        slab = plan.copy_matrices(own) * own.matrix_bytes
        assert slab % plan.piece_bytes(own) == 0
        assert plan.SLAB_BYTES / 2 < slab <= max(plan.SLAB_BYTES, own.matrix_bytes)
        assert plan.copy_memory(own) - plan.PYTHON_BYTES >= 3 * slab


@pytest.mark.parametrize("dtype", ITEM)
def test_synthesizing_asks_for_what_is_drawn(dtype):
    """Random numbers are drawn in double precision before they are narrowed; the job asks so."""
    dim = 20_011
    own = replace(problem("A @ A", dtype), left=(dim, dim))
    drawn = dim * dim * 8  # what numpy.random returns, beside the narrowed copy
    assert plan.synthetic_memory(own) - plan.PYTHON_BYTES >= drawn + own.matrix_bytes


def test_run_times_grow_with_work():
    """The time limit starts above zero and grows with bytes and with work."""
    assert plan.minutes(0) > 0
    assert plan.minutes(10**12) > plan.minutes(0)
    assert plan.minutes(0, 10**15) > plan.minutes(0)
