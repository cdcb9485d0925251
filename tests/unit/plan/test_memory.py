"""Slots, batches, calls and the memory model, as properties of any problem."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.files import pieces
from shardwise.plan import memory, problem
from shardwise.plan.problem import ITEM_BYTES, PRODUCTS, Problem, takes_b
from shardwise.units import MIB

from tests.factories import right_rows, settings

DTYPES = tuple(ITEM_BYTES)
KEEPS = ("products", "sum")
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


def budget(own, keep="products", count=1):
    """What a task takes for this many matrices."""
    return memory.Budget(own, settings(keep=keep, backend="auto"), [range(count)])


@given(problems(), st.integers(1, 10**7))
def test_a_batch_is_whole_calls_of_at_most_its_bytes(own, matrices):
    """Powers of two that depend on dtype and shapes alone; as many calls as fit BATCH_BYTES."""
    call, batch = own.call_matrices, budget(own).batch(cuda=True)
    other = replace(own, matrices=matrices)
    assert (call, batch) == (other.call_matrices, budget(other).batch(cuda=True))
    assert budget(own).batch(cuda=False) == budget(other, count=matrices).batch(cuda=False) >= 1
    assert batch % call == 0
    biggest = own.largest_bytes
    assert batch * biggest <= memory.BATCH_BYTES or batch == call == 1
    assert 2 * batch * biggest > memory.BATCH_BYTES
    assert call == 1 or biggest < problem.LARGE_BYTES
    assert call <= problem.MOST_IN_CALL
    assert call.bit_count() == batch.bit_count() == 1


@given(problems(), st.integers(1, 10**6), st.booleans())
def test_the_ladder_goes_down_to_the_least_that_works(own, count, cuda):
    """From what is planned, in ever smaller whole calls, to a single batch of one call."""
    steps = budget(own, count=count).ladder(cuda)
    call = own.call_matrices if cuda else 1
    batches, matrices = steps[0]
    assert matrices <= budget(own).batch(cuda)
    assert batches <= memory.SLOTS
    assert (batches - 1) * matrices < count  # no slot that would never be filled
    assert all(n % call == 0 and n >= call for _, n in steps)
    for keep in KEEPS:
        needed = [budget(own, keep).ring_bytes(memory.AHEAD * cuda, *step) for step in steps]
        assert needed == sorted(set(needed), reverse=True)
    assert steps[-1] == (1, call)


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


@given(
    st.sampled_from(PRODUCTS), st.sampled_from(DTYPES), st.integers(1, 10**9),
    st.sampled_from(KEEPS),
)  # fmt: skip
def test_memory_is_bounded_by_slots_not_by_the_stack(product, dtype, matrices, keep):
    """However many small matrices a shard holds, its task stays under 3 GiB, or 10 on a device."""
    left = (5, 5) if product == "A @ A" else (3, 5)
    right = (right_rows(product, *left), 7) if takes_b(product) else None
    own = Problem(matrices, left, product, dtype, right)
    assert budget(own, keep, matrices).host_bytes < 3072 * MIB
    assert budget(own, keep, matrices).device_bytes < 10_240 * MIB


@pytest.mark.parametrize(("own", "needed"), [
    (Problem(9, (1001, 1001), "A @ A", "float16"), True),
    (Problem(9, (1000, 1000), "A @ A", "float16"), False),
    (Problem(9, (1000, 1000), "A @ B", "float16", (1000, 1001)), True),
    (Problem(9, (1001, 1000), "A.T @ A", "float16"), False),
    (Problem(9, (1001, 1001), "A @ A", "int16"), False),
    (Problem(9, (11, 11), "A @ A", "float16"), False),
    (Problem(9, (30_001, 30_001), "A @ A", "float32"), False),  # no room for copies
])  # fmt: skip
def test_only_large_matrices_of_awkward_rows_are_padded(own, needed):
    """Padded if rows of a factor or a product are not multiples of 16 bytes, and copies pay off."""
    shapes = own.padded_shapes
    for key, (rows, row) in shapes.items():
        side = {"left": own.left, "right": own.right, "out": own.product_shape}[key]
        assert row * own.item % 16 == 0
        assert rows >= side[0]
        assert row >= side[1]
    assert bool(shapes) is needed
