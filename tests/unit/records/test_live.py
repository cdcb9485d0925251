"""Live files: there while a shard is at work for more than a second, and gone with it."""

import os
import time

import pytest
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


def test_a_short_shard_touches_no_file(tmp_path, monkeypatch):
    """Not in its first second: tiny shards cost nothing."""
    monkeypatch.setattr(live, "_FIRST", 1000.0)  # on a busy machine, too
    with live.AtWork(tmp_path / "logs" / "00007.json", FACTS, lambda: 3.7):
        pass
    assert list(tmp_path.iterdir()) == []


def test_who_watches_sees_a_shard_at_work(tmp_path, quick, monkeypatch):
    """From the folder alone, on which device it runs and how far it is; a full disk is survived."""
    made = factories.plan(tmp_path, stack((240, 4, 4)), shards=2, materialize=False)
    results, done, name = made.results, [0.0], made.shards["00001"].name
    results.live.parent.mkdir(exist_ok=True)
    replace, failed = os.replace, []

    def failing(source, target):
        if not failed:
            failed.append(source)
            raise OSError(28, "No space left on device")
        replace(source, target)

    def seen() -> tuple[str, float | None, str | None]:
        now = folder.Observer(results.root).look().shards["00001"]
        return now.state, now.progress, now.device and now.device.node

    monkeypatch.setattr(live.os, "replace", failing)
    facts = {**FACTS, "shard": "00001", "started": time.time()}
    with live.AtWork(results.live / f"{name}.json", facts, lambda: done[0]):
        processes.until(lambda: seen() == (status.RUNNING, 0.0, "n1"))
        done[0] = 60.9
        processes.until(lambda: seen() == (status.RUNNING, 0.5, "n1"))
    assert failed
    assert list(results.live.iterdir()) == []


def test_a_shard_and_its_copy_are_at_work(tmp_path, monkeypatch):
    """Both say what they are of, and of which attempt; the receipt is there before that goes.

    Else a shard would look as if its task had failed, for a moment.
    """
    told = []

    class Noted(live.AtWork):
        def __init__(self, path, facts, *rest):
            told.append((path.name, facts))
            super().__init__(path, facts, *rest)

        def __exit__(self, *error):
            told.append("gone")
            super().__exit__(*error)

    write = receipts.write_for
    monkeypatch.setattr(live, "AtWork", Noted)
    monkeypatch.setattr(receipts, "write_for", lambda *a: told.append("receipt") or write(*a))
    made = factories.plan(tmp_path, stack((4, 8, 8)), shards=1)
    job.run_shard(made, "00000")
    (name, facts), *rest = told
    assert rest == ["gone", (name, facts), "receipt", "gone"]
    assert name == f"{made.shards['00000'].name}.json"
    assert (facts["attempt"], facts["matrices"]) == (1, 4)
    assert facts["device"] == {"name": "CPU", "uuid": None}
    assert facts["started"] == factories.receipt(made).started
    made.results.receipt(made.shards["00000"].name).unlink()
    job.run_shard(made, "00000")
    assert told[-3][1]["attempt"] == 2
    assert list(made.results.live.glob("*")) == []
