"""A task of an array: its claims, its share, and what becomes of it where its process dies."""

import os
import signal
import subprocess
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.dispatch import run_time
from shardwise.dispatch.array import journal, puller, task
from shardwise.dispatch.array.claims import Claims, cut_blocks
from shardwise.dispatch.events import Limits
from shardwise.dispatch.schedulers.common import Array
from shardwise.errors import InputError, IntegrityError, Terminated, TryAgain
from shardwise.files.paths import Results
from shardwise.plan.plan import Plan

from tests import factories, processes
from tests.unit.dispatch.array.test_follow import whole
from tests.unit.dispatch.test_pool import planned

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
    """An array of the first shards of a plan."""
    return Array("uge", "array-1", "d", "sw-array-1-1", 1, tuple(range(shards)), tasks)


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
    assert follower.left() == set()
    assert follower.of(3) == [claim for claim in sorted(found, key=lambda c: c.block)
                              if claim.index == 3]  # fmt: skip


def test_a_second_life_does_not_write_what_the_first_has_claimed(tmp_path: Path) -> None:
    """The disk may be full by then: nobody could tell any more whose the claims are."""
    first = Claims(Results(tmp_path), array_of(8, 2))
    first.claim(1)
    own = first._own(1)
    own.write_text("1\n\n")
    again = Claims(Results(tmp_path), array_of(8, 2))
    again.claim(1)
    assert own.read_text() == "1\n\n"
    assert len(again.of(1)) == 2


# The share of one task.


@dataclass
class Time:
    """Seconds, as a test sets them."""

    now: float = 0.0

    def __call__(self) -> float:
        """The time now."""
        return self.now

    monotonic = __call__


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """A plan of twelve shards."""
    return factories.plan(
        tmp_path, factories.stack((SHARDS, 2, 2)), shards=SHARDS, materialize=False
    )


def share_of(plan: Plan, index: int = 1, ends: run_time.RunTime | None = None) -> puller.Share:
    """The share of a task of two."""
    return puller.Share(plan, array_of(SHARDS, 2), index, ends or run_time.RunTime(None))


@dataclass
class OneTask:
    """A task whose process computes what it is told to; its clock is the scheduler's, too."""

    plan: Plan
    end: float | None
    patch: pytest.MonkeyPatch
    clock: Time = field(default_factory=Time)

    def __post_init__(self) -> None:
        """Its device is taken."""
        self.patch.setattr(puller, "time", self.clock)
        self.share = share_of(self.plan, ends=run_time.RunTime(self.end, self.clock))
        self.share.send("ready")

    def compute(self, seconds: float, ahead: bool = False) -> str | None:
        """Compute the next shard, which is returned; the one behind it may be asked for."""
        shard = self.share.assigned.get_nowait()
        if shard is not None:
            if ahead:
                self.share.send("read", shard)
            self.clock.now += seconds
            self.share.send("done", shard)
        return shard


def test_a_task_takes_no_shard_that_it_cannot_finish(plan, monkeypatch):
    """100 s, shards of 20 s: four fit, as 25 s and the reserve are left before the last."""
    one = OneTask(plan, 100.0, monkeypatch)
    assert [one.compute(20.0) for _ in range(5)] == [*list(plan.shards)[:4], None]
    one.share.give_back()
    claimed = share_of(plan)._claims.of(1)
    assert [claim.numbers for claim in claimed] == [(0, 1, 2), (3, 4, 5)]
    marks = task.Marks(plan.results, array_of(SHARDS, 2))
    assert [marks.code(shard) for shard in list(plan.shards)[3:7]] == [None, 0, 0, None]


def test_a_shard_ahead_counts_as_well(plan, monkeypatch):
    """Of the first nobody knows how long it takes; later both of 20 s have to fit."""
    one = OneTask(plan, 95.0, monkeypatch)
    one.compute(20.0, ahead=True)
    one.compute(20.0, ahead=True)
    assert one.share._begun == ["00002"]
    one.share.send("read", "00002")
    assert one.share._begun == ["00002"], "two more would take until 105"


def test_a_warning_ends_the_task_after_its_shard(plan, monkeypatch):
    """After SIGUSR1 the shard under way goes on, and no other begins."""
    one = OneTask(plan, None, monkeypatch)
    one.share.run_time.close()
    assert [one.compute(20.0), one.compute(20.0)] == ["00000", None]


@pytest.mark.parametrize(("end", "code"), [(20.0, 75), (100.0, 0), (None, 0)])
def test_a_shard_that_needs_more_time_has_failed(plan, monkeypatch, end, code):
    """Ended for its run time, a task would meet the same shard again; else nobody is to blame."""
    one = OneTask(plan, end, monkeypatch)
    one.clock.now = 10.0
    one.share.leave()
    assert [one.share._marks.code(shard) for shard in list(plan.shards)[:4]] == [code, 0, 0, None]


def test_a_task_that_is_begun_anew_goes_on_with_its_claims(plan: Plan) -> None:
    """Requeued by its scheduler: without what is whole, failed, or was given up."""
    first = share_of(plan)
    first.send("ready")
    whole(plan, "00000")
    first._marks.leave("00001", 3)
    other, again = share_of(plan, index=2), share_of(plan)
    assert other.resume()
    assert not other._waiting
    assert again.resume()
    assert list(again._waiting) == ["00002"]


def test_its_process_is_suspended_with_its_task(plan, monkeypatch):
    """Grid Engine stops a process group; a user's function has one of its own, as it may end it."""
    monkeypatch.setattr(puller, "_compute", lambda *_: [(os.getpgrp(), "")])
    assert puller._compute_share(share_of(plan), Limits()) == {os.getpgrp(): ""}


@pytest.mark.fault("a worker or task that is killed")
def test_a_process_that_dies_before_it_has_a_shard_blames_none(plan: Plan) -> None:
    """It goes on behind another one, or in a task that was requeued, and its device fails."""
    share_of(plan).send("ready")
    again = share_of(plan)
    assert again.resume()
    with pytest.raises(TryAgain, match="killed by signal 9"):
        again.bury(-9)
    again.leave()
    marks = task.Marks(plan.results, array_of(SHARDS, 2))
    assert [marks.code(shard) for shard in list(plan.shards)[:4]] == [0, 0, 0, None]


def test_a_task_that_is_ended_as_it_begins_anew_gives_its_shards_back(plan, monkeypatch):
    """Requeued, and told to end before it knows its run time: nobody is to blame."""
    array = replace(array_of(SHARDS, 2), digest=plan.facts.digest)
    journal.note(plan.results, array)
    share_of(plan).send("ready")
    monkeypatch.setenv("SGE_TASK_ID", "1")
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID", raising=False)

    def terminated(_: float | None) -> run_time.RunTime:
        raise Terminated

    monkeypatch.setattr(puller, "of_this_job", terminated)
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        with pytest.raises(Terminated):
            puller.run(plan, array.name, Limits())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    marks = task.Marks(plan.results, array)
    assert [marks.code(shard) for shard in list(plan.shards)[:4]] == [0, 0, 0, None]


def test_what_is_whole_already_is_left_out(plan: Plan) -> None:
    """Another array has computed it meanwhile: the next shard comes, also past a whole block."""
    for shard in list(plan.shards)[:4]:
        whole(plan, shard)
    share = share_of(plan)
    share.send("ready")
    assert share.assigned.get_nowait() == "00004"


def test_what_is_no_task_is_refused(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand, or for an array that nobody has noted, or of a plan that another has replaced."""
    with pytest.raises(InputError, match="names no array sw-array-1-1"):
        puller.run(plan, "sw-array-1-1", Limits())
    journal.note(plan.results, replace(array_of(SHARDS, 2), name="sw-array-1-2", digest="old"))
    monkeypatch.setenv("SGE_TASK_ID", "1")
    with pytest.raises(IntegrityError, match="is not the plan of this run"):
        puller.run(plan, "sw-array-1-2", Limits())
    journal.note(plan.results, replace(array_of(SHARDS, 2), digest=plan.facts.digest))
    for name in ("SLURM_ARRAY_TASK_ID", "SGE_TASK_ID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match="no task of an array job here"):
        puller.run(plan, "sw-array-1-1", Limits())


# Whole tasks.


def command(made: Plan) -> list[str]:
    """The command line of the only task of an array."""
    array = replace(array_of(len(made.shards), 1), digest=made.facts.digest)
    journal.note(made.results, array)
    words = ("--dispatch", "array", "--array-task", array.name)
    return factories.command("dispatch", "--plan", made.results.plan, *words)


def ended(made: Plan) -> dict[str, int | None]:
    """The mark of each shard, None where it has none, but a whole product."""
    marks = task.Marks(made.results, array_of(len(made.shards), 1))
    codes = {shard: marks.code(shard) for shard in made.shards}
    for shard, code in codes.items():
        assert made.results.receipt(shard).exists() == (code is None)
    return codes


TASK = os.environ | {"SGE_TASK_ID": "1"}


@pytest.mark.fault("a poison shard")
def test_a_task_outlives_what_its_function_does(tmp_path: Path) -> None:
    """Each shard that ends its process fails alone, and so does bad input."""
    trouble = (
        "before = HERE / 'results' / 'products' / f'{first // 2 - 1:05}.json'\n"
        "if first in (4, 12, 18):\n    until(before.exists)\n"  # else it would be lost, too
        "if first == 4:\n    os.kill(os.getpid(), signal.SIGSEGV)\n"
        "if first == 8:\n    raise ValueError('such a bad matrix')\n"
        "if first == 12:\n    os._exit(0)\n"
        "if first == 18:\n    os.kill(os.getpid(), signal.SIGTERM)\n"
        "if first == 20:\n    import threading\n"
        "    threading.Thread(target=time.sleep, args=(1000,)).start()"
    )
    made = planned(tmp_path, trouble)
    done = subprocess.run(command(made), env=TASK, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    failed = {"00002": 75, "00004": 2, "00006": 2, "00009": 2}
    assert ended(made) == dict.fromkeys(made.shards) | failed
    told = {
        "00002": "was killed by signal 11",
        "00004": "such a bad matrix",
    }
    for shard, words in told.items():
        assert words in made.results.log("multiply", shard).read_text()
    left = np.load(tmp_path / "input.npy")[2 * SHARDS - 2 :]
    np.testing.assert_array_equal(np.load(made.results.product("00011")), left @ left)


def test_a_task_whose_process_dies_again_and_again_leaves_the_rest(tmp_path: Path) -> None:
    """It may be the device: two shards have failed, and other tasks take what it had claimed."""
    trouble = (
        "if first >= 4:\n"
        "    until((HERE / 'results' / 'products' / '00001.json').exists)\n"  # else it is lost, too
        "    os.kill(os.getpid(), signal.SIGSEGV)"
    )
    made = planned(tmp_path, trouble)
    done = subprocess.run(command(made), env=TASK, capture_output=True, text=True, check=False)
    assert done.returncode == 75, done.stderr
    marks = task.Marks(made.results, array_of(SHARDS, 1))
    codes = [marks.code(shard) for shard in list(made.shards)[:7]]
    assert codes == [None, None, 75, 75, 0, 0, None]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2, signal.SIGUSR1])
def test_a_task_that_is_told_to_end_gives_its_shards_back(tmp_path, number):
    """At once, or after SIGUSR1 with the shard under way; no process and no file is left."""
    # Until its own process has heard of SIGUSR1: else it could begin more shards before that.
    told = "not signal.getsignal(signal.SIGUSR1).__self__.suffices(1)"
    hang = f"until(lambda: {told}) if first == 2 else None"
    made = planned(tmp_path, hang)
    job = subprocess.Popen(command(made), env=TASK, stderr=subprocess.PIPE, text=True)
    processes.until(lambda: made.results.receipt("00000").exists())
    family = processes.descendants([job.pid])
    job.send_signal(number)
    _, said = job.communicate(timeout=60)
    assert job.returncode == (0 if number == signal.SIGUSR1 else 143), said
    assert not processes.living(family)
    assert not factories.leftovers(tmp_path)
    marks = task.Marks(made.results, array_of(SHARDS, 1))
    codes = [marks.code(shard) for shard in list(made.shards)[:6]]
    assert codes[:2] == [None, None if number == signal.SIGUSR1 else 0]
    assert codes[2] == 0 or number == signal.SIGUSR1, "it may have begun to read it"
    assert codes[3:] == [0, 0, 0]
