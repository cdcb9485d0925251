"""Clocks that are wrong, here or on the file server: nothing is computed twice or lost."""

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from shardwise.multiply import job
from shardwise.plan.plan import Plan
from shardwise.records import ledger
from shardwise.records.store import Store

from tests import factories

HOUR, DAY = 3600, 86400
STACK = factories.stack((6, 4, 4))


def ahead(*paths: Path) -> None:
    """Set the time stamps of files one day ahead."""
    for path in paths:
        os.utime(path, (time.time() + DAY, time.time() + DAY))


def multiplied(made: Plan) -> list[str]:
    """Multiply the missing shards, as a run does; return their names."""
    lacking = Store(made).missing()
    for name in lacking:
        job.run_shard(made, name)
    return lacking


def finished(made: Plan) -> None:
    """Make the ledger and the sum, and compare both with what is right."""
    ledger.write(made)
    assert {receipt.attempt for receipt in ledger.checked_receipts(made)} == {1}
    np.testing.assert_array_equal(factories.reduced(made), (STACK @ STACK).sum(axis=0))


@pytest.mark.fault("clocks that are wrong")
def test_files_of_tomorrow_are_files(tmp_path: Path, tried: Callable[..., None]) -> None:
    """With an input and two of three shards dated tomorrow, the third alone is multiplied, once.

    A new time stamp vouches for nothing: a product without a receipt is missing.
    """
    tried(2)
    source = factories.save(tmp_path / "input.npy", STACK)
    ahead(source)
    planned = factories.plan(tmp_path, input=str(source), shards=3)
    own = planned.results
    for name in ("00000", "00001"):
        job.run_shard(planned, name)
        kinds = ("product", "receipt", "shard", "shard_receipt")
        ahead(*(factories.file(planned, kind, name) for kind in kinds))
    assert multiplied(planned) == ["00002"]
    assert multiplied(planned) == []
    finished(planned)
    ahead(own.ledger, own.summary, own.statistic("sum"))
    assert multiplied(planned) == []
    finished(planned)
    ahead(factories.file(planned, "product", "00001"))
    factories.file(planned, "receipt", "00001").unlink()
    assert multiplied(planned) == ["00001"]
    assert multiplied(planned) == []


@pytest.mark.fault("clocks that are wrong")
@pytest.mark.parametrize("first", [-HOUR, HOUR], ids=["back", "forth"])
def test_a_clock_that_jumps_at_each_look_changes_nothing(tmp_path, monkeypatch, first):
    """Jumps of an hour, between and within the stages: a shard's seconds stay right."""
    real, shift = time.time, itertools.cycle([first, -first])
    monkeypatch.setattr(time, "time", lambda: real() + next(shift))
    made = factories.plan(tmp_path, STACK, shards=3)
    assert multiplied(made) == list(made.shards)
    assert multiplied(made) == []
    finished(made)
    assert multiplied(made) == []
    monkeypatch.undo()
    found = ledger.checked_receipts(made)
    begins = [receipt.started - real() for receipt in found]
    assert all(abs(begin) > HOUR / 2 for begin in begins), "the clock has jumped"
    assert all(0 <= receipt.finished - receipt.started < HOUR / 2 for receipt in found)
    finished(made)
