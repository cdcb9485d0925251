"""Packed planes: the same planes come back, in as few words as they need, and merge as they do."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.numerics import packed
from shardwise.numerics.binned import BinnedSum
from shardwise.numerics.packed import Packing
from shardwise.plan import memory
from shardwise.plan.problem import Problem

from tests.factories import FLOATS, noise

DTYPES = [*FLOATS, "int64"]
INT64 = st.integers(-(2**63), 2**63 - 1)


def packing_of(planes):
    """The packing of planes, and their words as rows."""
    out = np.empty(4 * planes.size, np.uint16)
    packing = Packing.of(packed.pack(planes, out))
    rows = out.reshape(-1, planes.shape[1])[: sum(packing.words)]
    assert packing.fits(len(planes), rows.shape)
    return packing, rows


def awkward(dtype, seed, shape):
    """Stacks of any bits, of numbers alike, of growing ones, or with NaN and infinities."""
    random, kind = np.random.default_rng(seed), seed % 5
    raw = random.bytes(np.dtype(dtype).itemsize * int(np.prod(shape)))
    if dtype == "int64":
        return np.frombuffer(raw, dtype).reshape(shape) >> random.integers(64)
    if kind == 0:
        return np.frombuffer(raw, dtype).reshape(shape)
    stack = noise(shape, dtype, seed)
    if kind == 1:
        stack[random.random(shape) < 0.1] = random.choice([np.nan, np.inf, -np.inf])
    if kind == 2:
        stack = np.zeros(shape, dtype)
    if kind == 3:
        stack *= np.exp2(random.integers(-14, 14, shape)).astype(stack.real.dtype)
    return stack


@given(numbers=st.lists(st.lists(INT64, min_size=3, max_size=3), min_size=2, max_size=5))
def test_any_planes_come_back(numbers):
    """Whatever whole numbers planes hold, and however many words they take."""
    planes = np.array(numbers)
    packing, rows = packing_of(planes)
    assert packed.unpack(rows, packing).tolist() == numbers


def signed(number, words):
    """The low words of a number, read as two's complement."""
    half = 2 ** (16 * words - 1)
    return (number + half) % (2 * half) - half


@given(number=INT64, rest=st.sampled_from([0, 1, -1]))
def test_no_word_is_written_that_is_not_needed(number, rest):
    """One word less would be another number; zeros and a first plane of equals take none."""
    packing, _ = packing_of(np.array([[number, number], [number, 0], [rest, rest]]))
    words = packing.words[1]
    assert words == 0 if number == 0 else signed(number, words) == number
    assert words <= 1 or signed(number, words - 1) != number
    assert packing.words[2] == abs(rest)
    equals = (0, number) if number or rest else (1, 0)
    assert (packing.words[0], packing.first) == equals


@pytest.mark.parametrize("dtype", DTYPES)
@given(seeds=st.lists(st.integers(0, 2**32), min_size=1, max_size=4), n=st.integers(1, 9))
def test_states_come_back_and_merge_as_planes_do(dtype, seeds, n):
    """NaN, infinities, tops that differ or grow: the same bits; rows may lie anywhere."""
    shape, numbers = (1500,), 1500 * (2 if "complex" in dtype else 1)
    shapes = Problem(n, (1, 1), "A @ A", dtype)
    expected, found = BinnedSum(np, shape, dtype), BinnedSum(np, shape, dtype)
    for seed in seeds:
        one = BinnedSum(np, shape, dtype)
        with np.errstate(all="ignore"):
            one.add(np.ascontiguousarray(awkward(dtype, seed, (n, *shape))))
        planes = one.planes()
        most = memory.most_words(shapes, n)
        out = np.empty(most * numbers + 5, np.uint16)
        packing = Packing.of(one.pack(out[: most * numbers]))
        rows = sum(packing.words)
        assert rows <= most
        came_back = packed.unpack(out[: rows * numbers].reshape(rows, numbers), packing)
        assert came_back.tobytes() == planes.tobytes()
        # The last row lies somewhere else.
        apart = np.concatenate([out, out[(rows - 1) * numbers : rows * numbers]])
        starts = [row * numbers for row in range(rows - 1)] + [len(out)]
        found.merge_packed(apart, starts, numbers, packing, n)
        expected.merge(planes, n)
    assert found.planes().tobytes() == expected.planes().tobytes()
    assert found.terms == expected.terms == n * len(seeds)


def test_products_of_normal_numbers_take_ten_bytes():
    """Of float32: one top for all, and two and three words of the two levels that are in use."""
    random = np.random.default_rng(3)
    left = random.standard_normal((256, 64, 64), dtype="float32")
    total = BinnedSum(np, (64, 64), "float32")
    total.add(left @ left)
    packing, _ = packing_of(total.planes().reshape(4, -1))
    assert packing == Packing((0, 2, 3, 0), 33)


@pytest.mark.parametrize("words", [(0, 2, 3, 0), (0, 4, 1, 4), (1, 0, 3, 2)])
@pytest.mark.parametrize("top", [32, 33, 35])
def test_sums_that_are_packed_alike_are_added_at_once(words, top):
    """As one by one, to the bit, whether they are added to a lower top or to a higher one."""
    width, sums, packing = 1500, 5, Packing(words, 0 if words[0] else 33)
    random = np.random.default_rng(top)
    shape = sums, sum(words), width
    rows = random.integers(0, 2**16, shape, np.uint16)
    if words[0]:
        rows[:, 0] = random.integers(32, 36, rows[:, 0].shape)  # tops
    flat, starts = rows.reshape(-1), [row * width for row in range(sums * sum(words))]
    state = np.zeros((4, width), np.int64)
    state[0] = top
    one_by_one, at_once = BinnedSum(np, (width,), "float32"), BinnedSum(np, (width,), "float32")
    for total in (one_by_one, at_once):
        total.merge(state, 1)
    for own in np.array(starts).reshape(sums, -1).tolist():
        one_by_one.merge_packed(flat, own, width, packing, 2)
    at_once.merge_packed(flat, starts, width, packing, 2 * sums)
    assert at_once.planes().tobytes() == one_by_one.planes().tobytes()
    assert at_once.terms == one_by_one.terms == 11


def test_what_does_not_fit_is_refused():
    """Other rows than the words of all planes, or rows beyond the buffer: nothing is read."""
    total = BinnedSum(np, (4,), "float32")
    packing = Packing((0, 1, 1, 0), 33)
    words = np.zeros(20, np.uint16)
    total.merge_packed(words, [0, 4], 4, packing, 1)
    for flat, starts, width, packed_as in (
        (words, [0, 4, 8], 4, packing),
        (words, [], 4, packing),
        (words, [0, 3], 3, packing),
        (words[:8], [1, 5], 4, packing),
        (words, [-1, 4], 4, packing),
        (words.view(np.int16), [0, 4], 4, packing),
        (words, [0, 4], 4, Packing((0, 1, 1), 33)),
        (words, [0, 4, 8, 12, 16], 4, Packing((0, 5, 0, 0), 33)),
        (words, [], 4, Packing((0, 0, 0, 0), 33)),
    ):
        with pytest.raises(ValueError, match=r"rows of|do not lie within"):
            total.merge_packed(flat, starts, width, packed_as, 1)
