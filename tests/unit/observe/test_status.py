"""A results folder is seen as it is: states of shards, the sum, what cannot be read, metrics."""

import json
import math
import os
import shutil
from functools import partial
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from shardwise.observe import metrics
from shardwise.observe.status import (
    DAMAGED,
    DONE,
    FAILED,
    RUNNING,
    WAITING,
    Status,
    by_cause,
    look,
)
from shardwise.plan.plan import Shard
from shardwise.records import locks
from shardwise.records.failures import Failure

from tests import factories, pretend

NOW = pretend.NOW


def failure(name: str, **over) -> Failure:
    """A failure file's content."""
    known = {"code": 75, "reason": "at\x1b[2J last", "host": "n1", "at": NOW - 9, "attempt": 2}
    return Failure(name, **(known | over))


# Functions that lay files of the first of three shards, and the state in which it then is.


def begin(made: pretend.Pretended, row: Shard, at: float = NOW - 5, text: str = "") -> None:
    """Write the journal of a shard's starts; the run began 20 s before NOW."""
    command, journal = made.plan.results.command, made.plan.results.starts(row.name)
    text = text or f"{NOW - 90}\tn2\t1\t\t\t\n{at}\tn1\t77\t5\tCPU\t\n"
    for path, content in ((command, "snakemake"), (journal, text)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    os.utime(command, (NOW - 20, NOW - 20))


def fail(made: pretend.Pretended, row: Shard, name: str = "{0.name}", **over) -> None:
    """Write a failure of a shard, or of its copy."""
    name = name.format(row)
    pretend.fail(made.plan.results, name, failure(name, **over))


def receipt(made: pretend.Pretended, row: Shard, key: str = "", alone: bool = False) -> None:
    """Put back the receipt, and its product unless ``alone``; perhaps under another key."""
    for suffix in [".json"] if alone else [".json", ".npy"]:
        name = f"{row.shard}-{key or row.key}{suffix}"
        (made.root / f"aside{suffix}").rename(made.root / "products" / name)


STATES_BY_FILES = [
    ([], WAITING, ""),
    ([receipt], DONE, ""),
    ([receipt, fail, begin], DONE, ""),
    ([partial(receipt, alone=True)], WAITING, ""),  # its product is gone
    ([partial(receipt, key="0" * 12)], WAITING, ""),  # of another config
    ([begin], RUNNING, ""),
    ([partial(begin, at=NOW - 30)], WAITING, ""),  # in an earlier run
    ([fail], FAILED, "at\\x1b[2J last"),
    ([partial(fail, at=1.0, run="0" * 12)], FAILED, "last"),  # of an earlier run
    ([fail, begin], RUNNING, ""),  # tried again
    ([fail, partial(begin, at=NOW - 12)], FAILED, "last"),
    ([partial(fail, name="copy-{0.input_name}")], FAILED, "last"),
    ([partial(fail, name="{0.shard}-" + "0" * 12)], WAITING, ""),  # of another config
    *(([partial(begin, text=text)], WAITING, "") for text in ("\n", "nan\tn\t1\t\t\t")),
    *(([receipt, lambda made, row, how=how: how(made.receipt(row.shard))], DAMAGED, words)
      for how, words in (
        (lambda r: r.write_bytes(r.read_bytes()[:-40]), "has changed since"),
        (factories.pipe, "is not a file"),
        (lambda r: r.with_suffix(".npy").write_bytes(b"short"), "has 5 bytes"),
        (lambda r: factories.rewritten(r, key="0" * 12), "but the plan says"))),
]  # fmt: skip


@pytest.mark.parametrize(("files", "state", "words"), STATES_BY_FILES)
def test_a_shard_is_in_the_state_that_its_files_say(tmp_path, files, state, words):
    """Receipt and product count first, then a start after the last failure, then that failure.

    No other time stamp counts. If a receipt is unusable or misfits, the verdict has the repair.
    """
    made = pretend.run(tmp_path, shards=3, waiting=2, devices=1)
    for suffix in (".json", ".npy"):
        made.receipt("00000").with_suffix(suffix).rename(made.root / f"aside{suffix}")
    for lay in files:
        lay(made, made.plan.shards["00000"])
    seen = made.look()
    first, *others = seen.shards.values()
    assert first.state == state
    assert words in " ".join([first.failure.reason if first.failure else "", *seen.damage])
    assert {one.state for one in others} == {WAITING}
    assert (seen.verdict.kind == "damaged") == (state == DAMAGED)
    assert (f"rm -f {made.receipt('00000')}" in seen.verdict.words) == (state == DAMAGED)
    assert (first.device.node == "n1", first.started == NOW - 5) == (state == RUNNING,) * 2
    assert seen.living is None  # there is no lock to ask


def test_nothing_runs_where_no_run_lives(tmp_path):
    """A task that was killed with its run has left a start and no end: its shard waits."""
    made = pretend.run(tmp_path, shards=3, running=1)
    assert made.look().counts[RUNNING] == 1
    results = made.plan.results
    results.living.parent.mkdir(exist_ok=True)
    results.running.touch()  # the lock of a run that has ended
    seen = made.look()
    assert (seen.living, seen.counts[RUNNING], seen.counts[WAITING]) == (False, 0, 1)
    with locks.take_lock(results.running, "busy"):  # as it makes its last page
        seen = made.look()
        assert (seen.living, seen.counts[RUNNING]) == (True, 0)
        with locks.hold_job_lock(results):
            assert made.look().counts[RUNNING] == 1


@pytest.mark.parametrize(("harm", "kind"), [
    (lambda r, key: r.statistic("sum").write_bytes(b"x"), "damaged"),
    (lambda r, key: factories.rewritten(r.summary, files={
        "../sum": json.loads(r.summary.read_bytes())["files"]["sum"]}), "damaged"),
    (lambda r, key: factories.rewritten(r.summary, plan="0" * 16), "damaged"),
    (lambda r, key: r.summary.unlink(), "unfinished"),
    (lambda r, key: r.summed(key).rename(r.summed("0" * 12)), "unfinished"),
])  # fmt: skip
def test_a_sum_that_is_not_of_this_plan_proves_nothing(tmp_path, harm, kind):
    """The marker names its plan; a summary that contradicts the marker is damage."""
    made = pretend.run(tmp_path, shards=3)
    harm(made.plan.results, made.plan.key)
    seen = made.look()
    assert (seen.summary, seen.verdict.kind) == (None, kind)


@pytest.mark.parametrize(("parts", "kind", "code"), [
    ({}, "proven", 0), ({"verify": False}, "unproven", 0),
    ({"waiting": 1}, "unfinished", 75), ({"running": 2, "failed": 3, "waiting": 1}, "failed", 3),
])  # fmt: skip
def test_the_verdict_says_whether_the_sum_is_right(tmp_path, parts, kind, code):
    """It is proven, or unproven, or not there; only this plan's stages count as failed."""
    made = pretend.run(tmp_path, shards=12, **parts)
    other, own = f"reduce-{'0' * 12}", f"reduce-{made.plan.key}"
    pretend.fail(made.plan.results, other, failure(other))
    seen = made.look()
    assert (seen.verdict.kind, seen.code) == (kind, code)
    pretend.fail(made.plan.results, own, failure(own, reason="no room"))
    seen = made.look()
    assert ("reduce", "no room") in [(name, why.reason) for name, why in seen.failed]
    assert ("; reduce: no room." in seen.verdict.words) == (kind in ("unfinished", "failed"))


def test_a_plan_that_was_changed_is_damage_and_none_is_not(tmp_path):
    """Neither has shards to show; a second look notices when another plan takes its place."""
    made = pretend.run(tmp_path, shards=3)
    before = look(made.root, NOW)
    assert len(before.shards) == 3
    made.plan.results.plan.write_bytes(made.plan.results.plan.read_bytes() + b"x")
    for root, kind, code in ((made.root, "damaged", 3), (tmp_path, "empty", 75)):
        seen = look(root)
        assert (seen.plan, dict(seen.shards)) == (None, {})
        assert (seen.verdict.kind, seen.code) == (kind, code)
    shutil.rmtree(made.root)
    other = pretend.run(tmp_path, shards=5, waiting=2, devices=1, matrices=3)
    seen = look(made.root, NOW, before)
    assert [one.state for one in seen.shards.values()] == [DONE] * 3 + [WAITING] * 2
    assert seen.plan.facts.digest == other.plan.facts.digest


def total(seen: Status, name: str, **labels: str) -> float:
    """The sum of all series of a name that have these labels."""
    families = text_string_to_metric_families(metrics.text(seen))
    found = (one for family in families for one in family.samples)
    asked, name = labels.items(), f"shardwise_{name}"
    return sum(one.value for one in found if one.name == name and asked <= one.labels.items())


def test_figures_are_what_the_files_come_to(tmp_path):
    """Each state has its count, seconds and bytes are sums over receipts, a device is suspect."""
    parts = {"failed": 1, "suspect": 1, "running": 3, "waiting": 4, "damaged": 1, "slow": 3}
    made = pretend.run(tmp_path, shards=20, devices=2, nodes=1, **parts)
    seen, done = made.look(), list(made.receipts.values())
    uuid = done[0]["device"]["uuid"]
    own = [receipt["held"] for receipt in done if receipt["device"]["uuid"] == uuid]
    for phase in own[0]:
        told = total(seen, "shard_held_seconds", phase=phase, device=uuid)
        assert told == pytest.approx(math.fsum(held[phase] for held in own))
    assert total(seen, "done_bytes") == seen.bytes("done")
    assert total(seen, "median_shard_duration_seconds") == pytest.approx(10)
    for state, count in seen.counts.items():
        assert total(seen, "shards", state=state) == count == len(made.roles[state])
    assert total(seen, "run_verdict", verdict="damaged") == total(seen, "run_verdict") == 1
    assert total(seen, "oldest_running_shard_seconds", shard=made.roles["running"][0]) == 5
    (uuid,) = seen.suspects
    assert total(seen, "device_suspect", device=uuid) == total(seen, "device_suspect") == 1


def test_failures_are_told_by_cause() -> None:
    """Six lines for ten thousand failures, the most frequent first, with shards and a log."""
    failed = {}
    for i in reversed(range(10**4)):  # jobs end in any order
        name = f"{i:07}-{i:012x}"
        cause = "abcdefghi"[i % 9 if i % 5 == 0 else 0]
        failed[name] = Failure(
            name, 2, f"{cause}: shard {name} of in/{name}.npy is bad", "n", 0, log=f"logs/{i}"
        )
    said = list(by_cause(failed.values(), Path("r")))
    assert len(said) == 6
    assert said[0].startswith("failed: multiply 0000000")
    assert "multiply 0000004 and 8218 more: a: shard 0000000-" in said[0]
    assert "(log: r/logs/0)" in said[0]
    assert said[-1] == "and 888 failures of 4 other causes: see r/failed"
