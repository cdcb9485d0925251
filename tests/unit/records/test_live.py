"""Live files: there while a shard is at work for more than a second, and gone with it."""

import os
import time

from shardwise.observe import folder, status
from shardwise.records import live

from tests import factories, processes
from tests.factories import stack

FACTS = {
    "shard": "00007", "attempt": 1, "started": 100.5, "node": "n1", "process": 123, "job": "77",
    "device": {"name": "CPU", "uuid": None}, "matrices": 120,
}  # fmt: skip


def test_who_watches_sees_a_shard_at_work(tmp_path, monkeypatch):
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

    monkeypatch.setattr(live, "_FIRST", 0.01)  # a hundredth of a second
    monkeypatch.setattr(live, "_RENEWED", 0.02)
    monkeypatch.setattr(live.os, "replace", failing)
    facts = {**FACTS, "shard": "00001", "started": time.time()}
    with live.at_work(results.live / f"{name}.json", facts, lambda: done[0]):
        processes.until(lambda: seen() == (status.RUNNING, 0.0, "n1"))
        done[0] = 60.9
        processes.until(lambda: seen() == (status.RUNNING, 0.5, "n1"))
    assert failed
    assert list(results.live.iterdir()) == []


def test_a_shard_that_takes_no_second_leaves_the_file_of_another_attempt(tmp_path):
    """Nothing is asked of the disk, as nothing was written."""
    path = tmp_path / "00001.json"
    path.write_text("another's")
    with live.at_work(path, FACTS, lambda: 0.0):
        pass
    assert path.read_text() == "another's"
