"""Live files: there while a shard is at work for more than a second, and gone with it."""

import os
import time

import pytest
from shardwise.files.paths import Results
from shardwise.multiply import job
from shardwise.observe import folder, status
from shardwise.records import live, receipts

from tests import factories, processes
from tests.factories import stack

FACTS = {
    "shard": "00007", "attempt": 1, "started": 100.5, "node": "n1", "process": 123, "job": "77",
    "device": {"name": "CPU", "uuid": None}, "matrices": 120,
}  # fmt: skip


@pytest.fixture
def quick(monkeypatch):
    """A second that takes a hundredth of one."""
    monkeypatch.setattr(live, "_FIRST", 0.01)
    monkeypatch.setattr(live, "_RENEWED", 0.02)


def at_work(results: Results) -> live.AtWork:
    """A shard of this folder at work."""
    results.live.parent.mkdir(exist_ok=True)
    return live.AtWork(results.live / "00007.json", FACTS, lambda: 3.7)


def test_a_short_shard_touches_no_file(tmp_path, monkeypatch):
    """Not in its first second: tiny shards cost nothing."""
    monkeypatch.setattr(live, "_FIRST", 1000.0)  # on a busy machine, too
    with at_work(Results(tmp_path)):
        pass
    assert list(Results(tmp_path).live.parent.iterdir()) == []


def test_a_file_that_could_not_be_written_once_is_written_later(tmp_path, quick, monkeypatch):
    """Else a shard would look lost after a moment in which the disk was full."""
    replace, failed = os.replace, []

    def failing(source, target):
        if not failed:
            failed.append(source)
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(live.os, "replace", failing)
    results = Results(tmp_path)
    with at_work(results):
        while not (results.live / "00007.json").exists():
            time.sleep(0.005)
    assert failed
    assert list(results.live.iterdir()) == []


# Shards.


def test_a_shard_and_its_copy_are_at_work(tmp_path, monkeypatch):
    """Both say what they are of, before the receipt and of the same attempt; each goes away."""
    told = []

    class Noted(live.AtWork):
        def __init__(self, path, facts, *rest):
            told.append((path.name, facts))
            super().__init__(path, facts, *rest)

    monkeypatch.setattr(live, "AtWork", Noted)
    made = factories.plan(tmp_path, stack((4, 8, 8)), shards=1)
    job.run_shard(made, "00000")
    (name, copying), (other, computing) = told
    assert name == other == f"{made.shards['00000'].name}.json"
    assert copying == computing
    assert computing["attempt"] == 1
    assert computing["matrices"] == 4
    assert computing["device"] == {"name": "CPU", "uuid": None}
    assert computing["started"] == factories.receipt(made).started
    made.results.receipt(made.shards["00000"].name).unlink()
    job.run_shard(made, "00000")
    assert told[-1][1]["attempt"] == 2
    assert len(told) == 3
    assert list(made.results.live.glob("*")) == []


def test_who_watches_sees_a_shard_at_work(tmp_path, quick):
    """From the folder alone: on which device it runs, and how far it is."""
    made = factories.plan(tmp_path, stack((240, 4, 4)), shards=2, materialize=False)
    results, done, name = made.results, [0.0], made.shards["00001"].name
    results.live.parent.mkdir(exist_ok=True)

    def seen() -> tuple[str, float | None, str | None]:
        now = folder.Observer(results.root).look().shards["00001"]
        return now.state, now.progress, now.device and now.device.node

    facts = {**FACTS, "shard": "00001", "started": time.time()}
    with live.AtWork(results.live / f"{name}.json", facts, lambda: done[0]):
        processes.until(lambda: seen() == (status.RUNNING, 0.0, "n1"))
        done[0] = 60.9
        processes.until(lambda: seen() == (status.RUNNING, 0.5, "n1"))
    assert list(results.live.iterdir()) == []


def test_the_receipt_is_there_before_the_live_file_goes(tmp_path, monkeypatch):
    """Else a shard would look as if its task had failed, for a moment."""
    order = []
    leave, write = live.AtWork.__exit__, receipts.write_for
    monkeypatch.setattr(
        live.AtWork, "__exit__", lambda self, *e: order.append("gone") or leave(self, *e)
    )
    monkeypatch.setattr(receipts, "write_for", lambda *a: order.append("receipt") or write(*a))
    made = factories.plan(tmp_path, stack((4, 8, 8)), shards=1, materialize=False)
    job.run_shard(made, "00000")
    assert order == ["receipt", "gone"]
