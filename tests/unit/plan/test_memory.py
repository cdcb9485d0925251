"""Slots, batches, calls and the memory model, against brute force and array by array."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.files import pieces
from shardwise.plan import memory, nodes
from shardwise.plan.problem import ITEM_BYTES, PRODUCTS, Problem, takes_b
from shardwise.units import MIB

from tests.factories import right_rows

# Distinct primes: a lost or swapped dimension changes every count.
M, K, P, N = 3, 5, 7, 11
DTYPES = tuple(ITEM_BYTES)
KEEPS = ("products", "sum")


def problem(product, dtype="float32", shared=False, scale=1, matrices=N):
    """A problem of prime dimensions, times a scale."""
    m, k, p = M * scale, K * scale, P * scale
    left = (k, k) if product == "A @ A" else (m, k)
    rows = right_rows(product, *left)
    return Problem(matrices, left, product, dtype, (rows, p) if rows else None, shared)


def function(dtype="float32", result_dtype="float64", scale=1, matrices=N):
    """A problem whose product is a function of the user's."""
    shapes = {"left": (M * scale, K * scale), "result": (P * scale, N * scale)}
    return Problem(matrices, product="m.py:f", dtype=dtype, result_dtype=result_dtype, **shapes)


sides = st.integers(1, 3000)


@st.composite
def problems(draw):
    """Any problem."""
    dtype, count = draw(st.sampled_from(DTYPES)), draw(st.integers(1, 10**7))
    m, k, p = draw(sides), draw(sides), draw(sides)
    product = draw(st.sampled_from([*PRODUCTS, "m.py:f"]))
    if product == "m.py:f":
        result_dtype = draw(st.sampled_from(["float16", "float64", "complex128", "int64"]))
        return Problem(count, (m, k), product, dtype, result=(p, m), result_dtype=result_dtype)
    left = (k, k) if product == "A @ A" else (m, k)
    right = (right_rows(product, *left), p) if takes_b(product) else None
    return Problem(count, left, product, dtype, right, draw(st.booleans()) and right is not None)


@given(problems(), st.integers(1, 10**7))
def test_a_call_depends_on_dtype_and_shapes_alone(own, matrices):
    """The number of matrices in the stack changes neither the size of a call nor of a batch."""
    other = replace(own, matrices=matrices)
    assert memory.call_matrices(own) == memory.call_matrices(other) >= 1
    for cuda in (True, False):
        assert memory.batch_matrices(own, cuda) == memory.batch_matrices(other, cuda) >= 1


@given(problems())
def test_a_batch_is_whole_calls_of_at_most_its_bytes(own):
    """As many calls as fit BATCH_BYTES; the sizes of calls and batches are powers of two."""
    call, batch = memory.call_matrices(own), memory.batch_matrices(own, cuda=True)
    assert batch % call == 0
    biggest = memory._largest(own)
    assert batch * biggest <= memory.BATCH_BYTES or batch == call == 1
    assert 2 * batch * biggest > memory.BATCH_BYTES
    if biggest >= memory.LARGE_BYTES:
        assert call == 1
    assert call <= memory.MOST_IN_CALL
    assert call.bit_count() == batch.bit_count() == 1


@given(problems(), st.integers(1, 10**6), st.booleans())
def test_the_ladder_goes_down_to_the_least_that_works(own, count, cuda):
    """From what is planned, in ever smaller whole calls, to a single batch of one call."""
    steps = list(memory.ladder(own, count, cuda))
    call = memory.call_matrices(own) if cuda else 1
    batches, matrices = steps[0]
    assert matrices <= memory.batch_matrices(own, cuda)
    assert batches <= memory.SLOTS
    assert (batches - 1) * matrices < count  # no slot that would never be filled
    assert all(n % call == 0 and n >= call for _, n in steps)
    for keep in KEEPS:
        needed = [memory.ring_bytes(own, b, n, keep) for b, n in steps]
        assert needed == sorted(set(needed), reverse=True)
    assert steps[-1] == (1, call)
    assert len(steps) < 40


@given(st.integers(0, 2**44))
def test_pieces_of_a_checksum_hold_whole_short_rows_or_parts_of_one(row_bytes):
    """A piece of at most 1 MiB is as many whole short rows as fit, or a part of one long row."""
    row, piece = pieces.checksum_pieces(row_bytes)
    assert 1 <= piece <= min(row, MIB)
    if row_bytes > MIB:
        assert row == row_bytes
        assert piece % 16 == 0
        count = -(-row // MIB)
        assert -(-row // piece) == count
        assert row - (count - 1) * piece > 240 or count > 2**15  # none too short for a device
    else:
        assert row == piece
        assert row % max(1, row_bytes) == 0
        assert row + max(1, row_bytes) > MIB


def shapes_of(own):
    """Elements of one A, of its own B, of the one B for all, and of one product."""
    right = own.right[0] * own.right[1] if own.right else 0
    m, p = own.product_shape
    return own.left[0] * own.left[1], *((0, right) if own.shared_right else (right, 0)), m * p


def held(own, batch, slots, keep, cuda):
    """Bytes of batches and of all arrays held alongside them, counted by hand."""
    left, right, shared, out = shapes_of(own)
    products = (min(4, slots) if keep == "products" else 1) * out * own.product_item
    held = batch * (slots * (left + right) * own.item + products) + shared * own.item
    if keep == "sum":
        nodes_of_all = nodes.most_held(0, own.matrices) + nodes.count_nodes(0, own.matrices)
        held += nodes_of_all * own.sum_item * out
    if own.result:
        return held + batch * (left * own.item + out * own.product_item)
    if "int" in own.dtype:
        return held + (left + right + shared) * 8  # one matrix, widened
    (m, k), (_, p) = own.factor_shapes
    item, proven = 16 if "complex" in own.dtype else 8, memory.proof_matrices(own, batch)
    held += proven * (k + m + p) * item * 4 + proven * (k + m) * 8  # vectors, and moduli
    if cuda and memory.padded(own):
        pads = sum(rows * columns for rows, columns in memory.padded_shapes(own).values())
        held += memory.call_matrices(own) * pads * own.item
    conjugated = "H" in own.product and "complex" in own.dtype and not cuda
    return held + (max(left, right, shared) * own.item if conjugated else 0)  # a matrix at a time


CASES = [
    *(problem(product, dtype) for product in PRODUCTS for dtype in DTYPES),
    *(problem("A @ B", dtype, shared=True) for dtype in DTYPES),
    *(function(dtype, result) for dtype in ("float32", "int8") for result in ("float64", "int64")),
]


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("unit", [1, 5000])
def test_a_task_is_given_what_it_holds(monkeypatch, keep, unit):
    """Without its fixed costs the model still covers all arrays of a task at once."""
    monkeypatch.setattr(memory, "HOST_BATCH_BYTES", unit)
    for own in CASES:
        batch = min(N, memory.batch_matrices(own, cuda=False))
        slots = min(2, -(-N // batch))
        variable = memory.task_memory(own, [range(N)], keep, cuda=False) - memory.PYTHON_BYTES
        assert variable >= held(own, batch, slots, keep, cuda=False), own


@pytest.mark.parametrize("keep", KEEPS)
def test_a_device_is_asked_for_what_it_holds(monkeypatch, keep):
    """Batches of A, B and products, padded copies of a call, vectors, and the sum."""
    monkeypatch.setattr(memory, "BATCH_BYTES", 50 * MIB)
    monkeypatch.setattr(memory, "CALL_BYTES", 25 * MIB)
    for scale, case in itertools.product((1, 67), CASES):
        right = case.right and tuple(scale * side for side in case.right)
        if not (case.result or "int" in case.dtype):
            left = tuple(scale * side for side in case.left)
            own = replace(case, matrices=10**8, left=left, right=right)
            batch, factors = memory.batch_matrices(own, cuda=True), sum(shapes_of(own)[:2])
            slots = max(2, min(memory.SLOTS, memory.RING_BYTES // (batch * factors * own.item)))
            asked = memory.device_memory(own, [range(own.matrices)], keep) - memory.DEVICE_BYTES
            assert asked >= held(own, batch, slots, keep, cuda=True), own


@given(
    st.sampled_from(PRODUCTS), st.sampled_from(DTYPES), st.integers(1, 10**9),
    st.sampled_from(KEEPS),
)  # fmt: skip
def test_memory_is_bounded_by_slots_not_by_the_stack(product, dtype, matrices, keep):
    """However many small matrices a shard holds, its task stays under 3 GiB, or 10 on a device."""
    own = problem(product, dtype, matrices=matrices)
    assert memory.task_memory(own, [range(matrices)], keep, cuda=True) < 3072 * MIB
    assert memory.device_memory(own, [range(matrices)], keep) < 10_240 * MIB
    one = replace(own, matrices=1)
    assert memory.copy_memory(own) == memory.copy_memory(one)


@given(problems())
def test_padded_rows_are_aligned_and_hold_the_matrix(own):
    """Each side grows by fewer elements than fit 16 bytes, and every row is aligned."""
    for key, given_ in (("left", own.left), ("right", own.right), ("out", own.product_shape)):
        if not given_:
            continue
        shape = memory.padded_shapes(own)[key]
        step = max(1, 16 // own.item)
        assert all(0 <= long - side < step for long, side in zip(shape, given_, strict=True))
        assert shape[1] * own.item % 16 == 0


@pytest.mark.parametrize(("own", "needed"), [
    (Problem(9, (1001, 1001), "A @ A", "float16"), True),
    (Problem(9, (1000, 1000), "A @ A", "float16"), False),
    (Problem(9, (1000, 1000), "A @ B", "float16", (1000, 1001)), True),
    (Problem(9, (1001, 1000), "A.T @ A", "float16"), False),
    (Problem(9, (1001, 1001), "A @ A", "int16"), False),
    (Problem(9, (11, 11), "A @ A", "float16"), False),
    (function("float16", "float16", scale=1001), False),
    (Problem(9, (23_001, 23_001), "A @ A", "float32"), True),
    (Problem(9, (30_001, 30_001), "A @ A", "float32"), False),  # no room for copies
])  # fmt: skip
def test_only_large_matrices_of_awkward_rows_are_padded(own, needed):
    """Padded if rows of a factor or a product are not multiples of 16 bytes, and copies pay off."""
    assert memory.padded(own) is needed
