"""Tasks that pull shards: claims, the share of a task, a dispatch that follows pretended ones."""

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.dispatch import run_time
from shardwise.dispatch.array import follow, journal, puller, task
from shardwise.dispatch.array.claims import Claims, cut_blocks
from shardwise.dispatch.events import Event
from shardwise.dispatch.leader import Leader
from shardwise.dispatch.schedulers.common import Array, Tasks
from shardwise.dispatch.schedulers.grid_engine import GridEngine
from shardwise.errors import InputError, TryAgain
from shardwise.files.paths import Results
from shardwise.plan.plan import Plan

from tests import factories
from tests.unit.dispatch.array.test_follow import Pretended, whole
from tests.unit.dispatch.array.test_follow import dispatch as follow_to_the_end

SHARDS = 12


@given(st.integers(0, 3000), st.integers(1, 50))
def test_blocks_hold_each_shard_once_and_shrink(count: int, tasks: int) -> None:
    """The first round deals half of all; the last blocks are single shards."""
    blocks = list(cut_blocks(count, tasks))
    assert [place for block in blocks for place in block] == list(range(count))
    sizes = [len(block) for block in blocks]
    assert sizes == sorted(sizes, reverse=True)
    if count > 2 * tasks:
        assert sizes[0] == count // (2 * tasks)
        assert sizes[-1] == 1


def array_of(shards: int, tasks: int) -> Array:
    """An array whose tasks pull shards."""
    return Array("uge", "array-1", "d", "sw-array-1-1", 1, 0, tuple(range(shards)), tasks)


def test_a_block_has_one_task(tmp_path: Path) -> None:
    """Eight tasks claim at the same time: each shard is claimed once, and all are."""
    array, found = array_of(200, 8), []

    def claim_all(index: int) -> None:
        claims = Claims(Results(tmp_path), array)
        while claim := claims.claim(index):
            found.append(claim)

    threads = [threading.Thread(target=claim_all, args=(index,)) for index in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(number for claim in found for number in claim.numbers) == Counter(range(200))
    follower = Claims(Results(tmp_path), array)
    assert sorted(follower.news(), key=lambda c: c.block) == sorted(found, key=lambda c: c.block)
    assert follower.news() == []
    assert not list(tmp_path.rglob(".*")), "no temporary file is left"


# The share of one task.


class Time:
    """Seconds since 1970, as a test sets them."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """The time now."""
        return self.now


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """A plan of twelve shards."""
    return factories.plan(
        tmp_path, factories.stack((SHARDS, 2, 2)), shards=SHARDS, materialize=False
    )


def share_of(plan: Plan, index: int = 1) -> puller.Share:
    """The share of a task of two."""
    array = array_of(SHARDS, 2)
    tally = puller._TaskTally(plan, task.Marks(plan.results, array))
    return puller.Share(plan, Claims(plan.results, array), index, tally)


@dataclass
class OneTask:
    """A task with its leader and a worker that computes what it is told to."""

    plan: Plan
    end: float | None
    clock: Time = field(default_factory=Time)
    dealt: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Claim a block; the worker is ready."""
        self.share = share_of(self.plan)
        self.run_time = run_time.RunTime(self.end, self.clock)
        self.share.claim()
        self.leader = Leader(self.plan, self.share._tally, self.share, self.run_time)
        self.leader.expect("worker", "node")
        self.tell("ready")

    def tell(self, kind: str, shard: str | None = None) -> None:
        """Tell the leader of an event, and note what it deals."""
        orders = self.leader.act([Event("worker", kind, shard)], self.clock.now)
        self.dealt += [order.shard for order in orders]

    def compute(self, shard: str, seconds: float, ahead: bool = False) -> None:
        """Compute a shard; the next one may be asked for while it is computed."""
        if ahead:
            self.tell("read", shard)
        self.clock.now += seconds
        self.tell("done", shard)


def test_a_task_takes_no_shard_that_it_cannot_finish(plan: Plan) -> None:
    """100 s, shards of 20 s: four fit, as 25 s and the reserve are left before the last."""
    one = OneTask(plan, 100.0)
    for shard in list(plan.shards)[:4]:
        one.compute(shard, 20.0)
    assert one.dealt == ["00000", "00001", "00002", "00003"]
    assert one.leader.late
    assert one.leader.ended
    with pytest.raises(TryAgain, match="the run time of this job is nearly up, the next one goes"):
        one.leader.finish()


def test_a_shard_ahead_counts_as_well(plan: Plan) -> None:
    """While one of 20 s is computed, another is asked for: both have to fit."""
    one = OneTask(plan, 95.0)
    one.compute("00000", 20.0)
    one.compute("00001", 20.0, ahead=True)
    assert one.dealt == ["00000", "00001", "00002"]
    one.tell("read", "00002")
    assert one.dealt[-1] == "00002", "two more would take until 105"
    assert not one.leader.ended, "the one under way goes on"


def test_a_warning_ends_the_task_after_its_shard(plan: Plan) -> None:
    """After SIGUSR1 the shard under way goes on, and no other begins."""
    one = OneTask(plan, None)
    one.run_time.close()
    assert not one.leader.ended
    one.compute("00000", 20.0)
    assert one.dealt == ["00000"]
    assert one.leader.ended


def test_a_task_that_is_begun_anew_goes_on_with_its_claims(plan: Plan) -> None:
    """Requeued by its scheduler: without what is whole, failed, or was given up."""
    first = share_of(plan)
    assert first.claim()
    block = first._tally.waiting
    assert len(block) == 3
    whole(plan, block[0])
    first._tally.marks.leave(block[1], 3)
    other, again = share_of(plan, index=2), share_of(plan)
    other.resume()
    assert other._tally.waiting == []
    again.resume()
    assert again._tally.waiting == [block[2]]


def test_what_is_no_task_is_refused(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand, or for an array that nobody has noted."""
    limits = puller.Limits()
    with pytest.raises(InputError, match="names no array sw-array-1-1"):
        puller.run(plan, "sw-array-1-1", limits)
    journal.note(plan.results, array_of(SHARDS, 2))
    for name in ("SLURM_ARRAY_TASK_ID", "SGE_TASK_ID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match="no task of an array job here"):
        puller.run(plan, "sw-array-1-1", limits)


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        (["-l", "h_rt=120"], 120),
        (["-l", "gpu=1,h_rt=1:02:03"], 3723),
        (["-l", "s_rt=0:1:0,h_rt=120"], 60),
        (["-l", "gpu=1"], None),
    ],
)
def test_grid_engine_s_limit_is_read(words: list[str], seconds: float | None) -> None:
    """The hard or the soft limit of run time, whichever comes first."""
    assert GridEngine().run_time(words) == seconds


# A dispatch.


@dataclass
class Pulling(Pretended):
    """A scheduler whose tasks pull shards, two at each look, as many tasks at once as devices.

    ``ends`` says how a task leaves at its second look: ``killed`` without a word, ``gives up`` in
    order, or ``cannot`` compute at all.
    """

    devices: int = 2
    ends: dict[int, str] = field(default_factory=dict)
    mine: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    cancelled: int = 0

    def tasks(self, runs: list[str]) -> list[Tasks]:
        """Work on the first tasks, and list those that are left."""
        found = []
        for name, (own, left, _) in list(self.queue.items()):
            for index in left[: self.devices]:
                if not self._pull(own, index):
                    left.remove(index)
            found += [
                Tasks(f"job-{name}", name, (index,), "node" if (name, index) in self.mine else "")
                for index in left
            ]
        return found

    def _pull(self, own: Array, index: int) -> bool:
        """Compute two shards; whether the task goes on."""
        if not own.pulls:
            self._work(own, f"{own.numbers[index - 1]:05}")
            return False
        marks, claims = task.Marks(self.plan.results, own), Claims(self.plan.results, own)
        begun = (own.name, index) in self.mine
        mine = self.mine.setdefault((own.name, index), [])
        how = self.ends.pop(index, "") if begun or self.ends.get(index) == "cannot" else ""
        for _ in range(2):
            if not mine and (claim := claims.claim(index)):
                mine += [f"{number:05}" for number in claim.numbers]
            if how:
                self._end(how, mine, marks)
                return False
            if not mine:
                return False
            shard = mine.pop(0)
            self.starts.append(shard)
            code = self.codes[shard].pop(0) if self.codes.get(shard) else 0
            marks.leave(shard, code) if code else whole(self.plan, shard)
        return True

    def _end(self, how: str, mine: list[str], marks: task.Marks) -> None:
        if how == "killed":
            self.starts += mine[:1]
        for shard in mine if how != "killed" else ():
            marks.leave(shard, 75 if how == "cannot" else 0)

    def cancel_tasks(self, number: str, which: list[int]) -> None:
        """Take waiting tasks out of the queue."""
        _, left, _ = self.queue[number.removeprefix("job-")]
        self.cancelled += len(which)
        for index in which:
            left.remove(index)


@pytest.fixture
def pulling(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> Pulling:
    """Twelve shards, and a scheduler without tasks."""
    made = Pulling(plan)
    monkeypatch.setitem(follow.SCHEDULERS, "uge", made)
    for name in ("LOOK_SECONDS", "_LONG_LOOK_SECONDS", "_FULL_SECONDS", "_MARK_SECONDS"):
        monkeypatch.setattr(follow, name, 0.01)
    return made


def test_each_shard_is_computed_once(pulling: Pulling) -> None:
    """Four tasks, two of which find no device before all shards have a task: these are spared."""
    follow_to_the_end(pulling, tasks=4)
    assert Counter(pulling.starts) == Counter(pulling.plan.shards.keys())
    assert [(a.tasks, len(a.numbers)) for a in journal.noted(pulling.plan.results)] == [(4, SHARDS)]
    assert pulling.cancelled == 2


def test_a_scheduler_s_largest_array_is_a_limit(pulling: Pulling) -> None:
    """It takes three tasks at most: three pull all shards."""
    pulling.most = 3
    follow_to_the_end(pulling)
    assert [a.tasks for a in journal.noted(pulling.plan.results)] == [3]


def test_a_killed_task_costs_one_shard_a_try(pulling: Pulling) -> None:
    """What else it had claimed is no failure, and is submitted beside the second try."""
    pulling.ends = {1: "killed"}
    follow_to_the_end(pulling, tasks=2)
    assert sum(Counter(pulling.starts).values()) == SHARDS + 1
    attempts = Counter(a.attempt for a in journal.noted(pulling.plan.results))
    assert attempts[2] == 1


def test_what_is_given_up_is_no_failure(pulling: Pulling) -> None:
    """Both tasks leave in order: other tasks go on, at the first try."""
    pulling.ends = {1: "gives up", 2: "gives up"}
    follow_to_the_end(pulling, retries=0, tasks=2)
    assert Counter(pulling.starts) == Counter(pulling.plan.shards.keys())
    assert {a.attempt for a in journal.noted(pulling.plan.results)} == {1}


def test_a_shard_that_fails_costs_no_other(pulling: Pulling) -> None:
    """One passes at its third try, one never does."""
    pulling.codes = {"00001": [75, 75], "00002": [75, 75, 75]}
    with pytest.raises(TryAgain, match="of 12 shards 1 failed; 11 are whole"):
        follow_to_the_end(pulling, tasks=2)
    counts = Counter(pulling.starts)
    assert counts == Counter(pulling.plan.shards.keys()) + Counter({"00001": 2, "00002": 2})


def test_tasks_that_cannot_compute_come_to_an_end(pulling, monkeypatch):
    """No task finds a device, array after array: each costs all its shards a try, then it ends."""
    monkeypatch.setattr(Pulling, "_pull", self_giving_up)
    with pytest.raises(TryAgain, match="of 12 shards 12 failed; 0 are whole"):
        follow_to_the_end(pulling, tasks=2)
    assert len(journal.noted(pulling.plan.results)) <= 9
    log = pulling.plan.results.log("multiply", "00011").read_text()
    assert "no task of its array could compute" in log


def self_giving_up(pulling: Pulling, own: Array, index: int) -> bool:
    """A task whose node has no usable device: it claims a block, and leaves."""
    if (claim := Claims(pulling.plan.results, own).claim(index)) is not None:
        for number in claim.numbers:
            task.Marks(pulling.plan.results, own).leave(f"{number:05}", 75)
    return False


def test_a_next_run_joins_them(pulling: Pulling) -> None:
    """One task works and one is gone: its shards are submitted, the other's are waited for."""
    plan = pulling.plan
    old = Array(
        "uge", "array-old", plan.facts.digest, "sw-array-old-1", 1, 0, tuple(range(SHARDS)), 2
    )
    journal.note(plan.results, old)
    claims = Claims(plan.results, old)
    living, dead = claims.claim(1), claims.claim(2)
    assert living
    assert dead
    pulling.mine[old.name, 1] = [f"{number:05}" for number in living.numbers]
    pulling.queue[old.name] = (old, [1], None)
    follow_to_the_end(pulling, tasks=2)
    assert Counter(pulling.starts) == Counter(plan.shards.keys())
    again = [a for a in journal.noted(plan.results) if a.run != old.run]
    assert sorted(number for a in again for number in a.numbers) == sorted(dead.numbers)


@pytest.mark.parametrize(
    ("env", "number"),
    [
        ({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}, "7_2"),
        ({"SLURM_JOB_ID": "9"}, "9"),
    ],
)
def test_slurm_is_asked_for_this_very_task(tmp_path, monkeypatch, env, number):
    """The last task of an array has the number of the whole array, which has many ends."""
    for name in ("JOB", "ARRAY_JOB", "ARRAY_TASK"):
        monkeypatch.delenv(f"SLURM_{name}_ID", raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    command = tmp_path / "squeue"
    command.write_text(f'#!/bin/sh\necho "$*" > "{tmp_path}/asked"; echo 2026-11-23T17:00:00\n')
    command.chmod(0o755)
    end = run_time.of_this_job(None)._end
    assert f"--jobs={number}\n" in (tmp_path / "asked").read_text()
    assert end == time.mktime((2026, 11, 23, 17, 0, 0, 0, 0, -1))
    command.write_text("#!/bin/sh\necho N/A\n")
    assert run_time.of_this_job(None).suffices(10**9), "without a limit all fits"
