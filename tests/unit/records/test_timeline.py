"""Where time went: each moment is given once, to who holds the shard up."""

import time

import pytest
from shardwise.multiply import job
from shardwise.multiply import session as sessions
from shardwise.plan import memory
from shardwise.records import receipts, timeline
from shardwise.records.timeline import STAGES, Stopwatch

from tests import factories


def test_what_is_no_stage_is_waiting():
    """All phases add up to the whole, each moment counted once."""
    own = Stopwatch()
    for stage in STAGES:
        with own.timed(stage):
            time.sleep(0.01)
    told = own.held(own.end() + 5)
    assert tuple(told) == timeline.PHASES
    assert all(told[stage] >= 0.01 for stage in STAGES)
    assert told["waiting"] == pytest.approx(5, abs=0.5)


def test_a_clock_that_is_set_makes_no_second_longer(monkeypatch):
    """The end is as many seconds after the beginning as have passed, whatever the clock says."""
    own = Stopwatch()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert 0 <= own.end() - own.unix < 60


# Receipts.

KINDS = {
    "products": {"materialize": False},
    "sum": {"materialize": False, "keep": "sum"},
    "copied by the task": {"materialize": True},
    "pairs": {"materialize": False, "product": "A @ B"},
    "a shared B": {"materialize": False, "product": "A @ B"},
    "unproven": {"materialize": False, "verify": False},
}


def receipt_of(plan) -> receipts.ProductReceipt:
    """The receipt of the one shard of a plan, once computed."""
    job.run_shard(plan, "00000")
    return factories.receipt(plan)


@pytest.mark.parametrize("kind", KINDS)
def test_the_phases_of_a_receipt_add_up(tmp_path, monkeypatch, kind):
    """To the seconds from its beginning to its end."""
    monkeypatch.setattr(memory, "HOST_BATCH_BYTES", 5 * 512)
    right = {"pairs": (40, 8, 8), "a shared B": (8, 8)}.get(kind)
    right = None if right is None else factories.stack(right, "float64", 1)
    left = factories.stack((40, 8, 8), "float64")
    plan = factories.plan(tmp_path, left, right, shards=1, **KINDS[kind])
    made = receipt_of(plan)
    assert sum(made.held.values()) == pytest.approx(made.finished - made.started, abs=1e-4)
    assert made.held["compute"] > 0
    assert made.held["read"] > 0


def test_the_time_of_a_shard_that_waits_for_another_is_waiting(tmp_path):
    """One that is begun ahead has nothing at work while the one before is computed."""
    plan = factories.plan(tmp_path, factories.stack((8, 4, 4)), shards=2, materialize=False)
    session = sessions.Session(plan)
    first, second = (job.ShardJob(session, shard).begin() for shard in plan.shards)
    time.sleep(0.3)
    for each in (first, second):
        each.compute()
        each.finish()
    held = factories.receipt(plan, "00001").held
    assert held["waiting"] >= 0.1
