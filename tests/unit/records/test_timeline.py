"""Where time went: each moment is given once, to who holds the shard up."""

import threading
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.files import pieces
from shardwise.multiply import job
from shardwise.multiply import session as sessions
from shardwise.plan import memory
from shardwise.records import receipts, timeline
from shardwise.records.timeline import STAGES, Spans, Stopwatch

from tests import factories

ORDER = ("compute", "upload", "download", "write", "read")
MOMENTS = 60  # whole seconds, so that a sweep can look at each

spans = st.tuples(st.sampled_from(ORDER), st.integers(-5, MOMENTS + 5), st.integers(0, 20))


def swept(noted: list[tuple[str, int, int]], seconds: int) -> dict[str, int]:
    """What `held` says of whole seconds, by a look at each of them."""
    at_work = [{s for s, a, n in noted if a <= t < a + n} for t in range(seconds)]
    # Whatever lies past the last stage is a write.
    reached = [(a, a + n) for _, a, n in noted if a < seconds and a + n > 0]
    last = min(seconds, max((end for _, end in reached), default=0))
    for t in range(last, seconds):
        at_work[t].add("write")
    held = dict.fromkeys(("waiting", *STAGES), 0)
    for stages in at_work:
        held[next((stage for stage in ORDER if stage in stages), "waiting")] += 1
    return held


@given(st.lists(spans, max_size=30), st.integers(1, MOMENTS))
def test_each_moment_is_given_to_the_first_stage_at_work(noted, seconds):
    """Whatever overlaps, comes late or lies outside: as a look at every second finds it."""
    noted = [span for span in noted if span[2] and span[1] < seconds]
    own = Stopwatch()
    for stage, began, length in noted:
        own.note(stage, (own.began + began, own.began + began + length))
    told = own.held(own.unix + seconds)
    assert tuple(told) == timeline.PHASES
    assert told == pytest.approx(swept(noted, seconds), abs=1e-4)
    assert sum(told.values()) == pytest.approx(seconds, abs=1e-5)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 50)), min_size=1, max_size=300))
def test_few_spans_stand_for_many(pairs):
    """Past the most that are kept the shortest gaps are closed: no span is lost, none overlaps."""
    own, most = Spans(), 16
    for began, length in pairs:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(timeline, "MOST_SPANS", most)
            own.add((began, began + length))
    kept = own.within(-1, 2 * 10**6)
    assert len(kept) <= most
    assert all(a[1] < b[0] for a, b in pairwise(kept))
    for began, length in pairs:
        assert any(low <= began and began + length <= high for low, high in kept)


def test_threads_may_note_at_once():
    """No span is lost."""
    own = Stopwatch()

    def note(first: int) -> None:
        for i in range(first, 4000, 4):
            own.note("read", (own.began + i, own.began + i + 0.5))

    threads = [threading.Thread(target=note, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert own.held(own.unix + 4000)["read"] == pytest.approx(2000, abs=1e-3)


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
    monkeypatch.setattr(pieces, "SLAB_BYTES", 3 * 1000)
    monkeypatch.setattr(memory, "HOST_BATCH_BYTES", 5 * 512)
    right = {"pairs": (40, 8, 8), "a shared B": (8, 8)}.get(kind)
    right = None if right is None else factories.stack(right, "float64", 1)
    left = factories.stack((40, 8, 8), "float64")
    plan = factories.plan(tmp_path, left, right, shards=1, **KINDS[kind])
    made = receipt_of(plan)
    assert sum(made.held.values()) == pytest.approx(made.finished - made.started, abs=1e-4)
    assert made.held["compute"] > 0
    assert made.held["read"] + made.held["upload"] > 0


def test_the_time_of_a_shard_that_waits_for_another_is_waiting(tmp_path):
    """One that is begun ahead has nothing at work while the one before is computed."""
    plan = factories.plan(tmp_path, factories.stack((8, 4, 4)), shards=2, materialize=False)
    session = sessions.Session(plan, 0)
    first, second = (job.ShardJob(session, shard).begin() for shard in plan.shards)
    time.sleep(0.3)
    first.run()
    second.run()
    held = factories.receipt(plan, "00001").held
    assert held["waiting"] >= 0.1
