"""Two attempts of one shard at once: in any order, a receipt describes the file next to it."""

import itertools
import threading
from pathlib import Path

import numpy as np
import pytest
from shardwise.errors import TryAgain
from shardwise.files import npy
from shardwise.multiply import job, ring
from shardwise.records import ledger
from shardwise.records.store import Store

from tests import factories
from tests.factories import noise
from tests.faults.stages import vouches

ORDERS = sorted(set(itertools.permutations("aaabbb")))
"""Of each attempt's three steps: it renames its product, then its receipt, then it ends."""


def interleaved(monkeypatch, made, order, products):
    """Multiply one shard in two threads whose renames follow ``order``; return how each ended."""
    left, changed, replace = [*order], threading.Condition(), npy.os.replace
    ends = {}

    def take(step):
        """Do one step of this thread when all before it are done."""
        who = threading.current_thread().name
        with changed:
            assert changed.wait_for(lambda: left[:1] == [who], 60)
            try:
                return step()
            finally:
                del left[0]
                changed.notify_all()

    def in_turn(old, new):
        if Path(new).parent.name != "products":  # such as the note on a failure
            return replace(old, new)
        return take(lambda: replace(old, new))

    def attempt(name):
        try:
            job.run_shard(made, "00000")
            ends[name] = "whole"
        except TryAgain as error:
            ends[name] = str(error)

    monkeypatch.setattr(npy.os, "replace", in_turn)
    worked = ring.Ring._work

    def own(self, slot):
        worked(self, slot)
        slot.written.view("float32")[:] *= products[threading.current_thread().name]

    monkeypatch.setattr(ring.Ring, "_work", own)
    publish = Store.publish

    def last(*words):
        try:
            publish(*words)
        finally:
            take(lambda: None)

    monkeypatch.setattr(Store, "publish", last)
    threads = [threading.Thread(target=attempt, args=(name,), name=name) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


@pytest.mark.fault("two attempts of one shard at once")
@pytest.mark.parametrize("differ", [False, True], ids=["same", "differ"])
@pytest.mark.parametrize("order", ORDERS, ids="".join)
def test_a_receipt_never_vouches_for_the_other_attempts_file(tmp_path, monkeypatch, order, differ):
    """In any order of renames and ends; a shard that is not whole then is so after one more try."""
    stack = noise((4, 3, 3), "float32")
    made = factories.plan(tmp_path, stack, shards=1, materialize=False, verify=False)
    products = {"a": 1, "b": 2 if differ else 1}
    with monkeypatch.context() as patch:
        ends = interleaved(patch, made, order, products)
    whole = not Store(made).missing()
    assert not whole or vouches(factories.receipt(made).file, factories.file(made, "product"))
    assert whole or differ, "attempts that agree never disturb each other"
    assert whole or any("another attempt" in end for end in ends.values())
    assert "whole" in ends.values() or not whole
    if not whole:
        job.run_shard(made, "00000")
    ledger.write(made)
    product, expected = factories.products(made), factories.multiplied(made, stack)
    factors = {1, products["b"]} if whole else {1}
    assert any(np.array_equal(product, factor * expected) for factor in factors)


RENAMING = """
import os
def f(xp, block):
    if os.path.exists({other!r}):
        os.rename({results!r}, {results!r} + "-old")
        os.rename({other!r}, {results!r})
    return block
"""


@pytest.mark.fault("a results folder that is renamed under a task")
@pytest.mark.parametrize("command", ["multiply --shard 00000", "dispatch"])
def test_a_task_whose_folder_was_renamed_changes_nothing_in_the_new_one(tmp_path, command):
    """The new folder's results, of another config, stay; only logs and failures may be new."""
    results, other = str(tmp_path / "results"), tmp_path / "other"
    function = tmp_path / "f.py"
    function.write_text(RENAMING.format(results=results, other=str(other / "results")))
    stack = noise((4, 3, 3), "float32")
    made = factories.plan(tmp_path, stack, shards=2, product=f"{function}:f", materialize=False)
    factories.computed(factories.plan(other, stack, shards=2))
    before = contents(other / "results")
    script, *words = command.split()
    done = factories.run(script, "--plan", made.results.plan, *words)
    assert done.returncode in (2, 75), done.stderr
    assert contents(tmp_path / "results") == before


def contents(folder):
    """What each file of a results folder holds, but for logs and failures."""
    aside = {"logs", "failed"}
    files = [path for path in folder.rglob("*") if path.is_file() and not aside & {*path.parts}]
    return {path.relative_to(folder): path.read_bytes() for path in files}
