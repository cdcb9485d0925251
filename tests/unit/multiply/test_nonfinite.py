"""A NaN or Inf is named by the user's own file, row and column."""

import os

import numpy as np
import pytest
from shardwise import pace
from shardwise.errors import IntegrityError, TryAgain
from shardwise.multiply import job
from shardwise.plan import memory

from tests import factories
from tests.factories import copied, refused, stack


def with_wild(shape, value=np.nan, dtype="float32", at=(4, 2, 1)):
    """A stack in which one element is not finite."""
    array = stack(shape, dtype)
    array[at] = value
    return array


ORDERS = {"C": lambda a: a, "F": np.asfortranarray, "big-endian": lambda a: a.astype(">f4")}


@pytest.mark.parametrize(("part", "keep", "materialize", "order"), [
    (memory.STEP_BYTES, "products", True, "C"), (339, "products", False, "F"),
    (339, "sum", True, "big-endian"), (339, "sum", False, "C"),
])  # fmt: skip
def test_a_stack(tmp_path, monkeypatch, part, keep, materialize, order):
    """The message has matrix, row and column, whatever the layout of the file."""
    monkeypatch.setattr(memory, "STEP_BYTES", part)
    array = ORDERS[order](with_wild((9, 11, 11), np.inf, at=(4, 7, 9)))
    over = {"shards": 3, "materialize": materialize, "keep": keep}
    told = refused(factories.plan(tmp_path, array, **over), "00001")
    place = f"inf at row 7, column 9 of matrix 4 of {tmp_path}/input.npy (counted from 0)"
    assert told == f"input: matrix 4 holds NaN or Inf: {place}; correct it, or set nonfinite: allow"


@pytest.mark.parametrize("shared", [True, False])
def test_b(tmp_path, shared):
    """The message has the place in B, whether one B serves all or each A has its own."""
    right = with_wild((9, 9, 11), at=(4, 2, 1))
    right, of = (right[4], "") if shared else (right, "matrix 4 of ")
    made = factories.plan(tmp_path, stack((9, 17, 9)), right, product="A @ B", shards=3)
    told = refused(made, "00001")
    assert told.startswith(f"right: matrix {0 if shared else 4} holds NaN or Inf: ")
    assert f"nan at row 2, column 1 of {of}{tmp_path}/right.npy (counted from 0)" in told


def test_a_function_of_ones_own(tmp_path):
    """A NaN in the input is named by its place, one in the result by the file of its matrix."""
    path = tmp_path / "mine.py"
    path.write_text("def f(xp, block):\n    return 1 / (block - 2)\n")
    over = {"product": f"{path}:f", "shards": 3}
    told = refused(factories.plan(tmp_path, with_wild((9, 3, 3)) * 5, **over), "00001")
    assert f"nan at row 2, column 1 of matrix 4 of {tmp_path}/input.npy" in told
    finite = np.zeros((9, 3, 3))
    finite[4, 2, 1] = 2
    told = refused(factories.plan(tmp_path / "b", finite, **over), "00001")
    assert f"returned NaN or Inf for matrix 4, which is finite (matrix 4 of {tmp_path}/b/in" in told


def test_a_nan_that_is_not_in_the_input_is_damage(tmp_path):
    """A copy whose bits flip to a NaN is damaged: the user has nothing to correct."""
    made = copied(factories.plan(tmp_path, stack((9, 3, 3)), shards=3, materialize=True))
    path = factories.file(made, "shard", "00001")
    with open(path, "r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(np.float32(np.nan).tobytes())
    with pytest.raises(IntegrityError) as caught:
        job.run_shard(made, "00001")
    told = str(caught.value)
    assert f"{path} is damaged: its checksum differs from its receipt; rm -f " in told


def test_bytes_that_change_behind_a_whole_copy_are_not_its_damage(tmp_path, monkeypatch, caplog):
    """As the memory of a node may do: another try may be right. Long work says how far it is."""
    monkeypatch.setattr(pace, "_EVERY_SECONDS", -1.0)
    caplog.set_level("INFO")
    made = copied(factories.plan(tmp_path, stack((9, 3, 3)), shards=3, materialize=True))
    own = job.ShardJob(job.Session(made), "00001").begin()
    own.compute()
    own.factors[0].hashed = own.factors[0].hashed.__class__(0, 1, 1)
    with pytest.raises(TryAgain, match=r"have changed on their way .* whole; suspect the memory"):
        own.finish()
    assert not made.results.receipt(own.shard.name).exists()
    assert caplog.messages[-1] == "shard 00001: 100 % done; about 0 ms to go"
