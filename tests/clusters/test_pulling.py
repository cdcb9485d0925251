"""Tasks of an array that claim shards, on a real scheduler: killed, preempted, out of time."""

import contextlib
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests import processes
from tests.clusters.night import MULTIPLY, ArrayNight

# By day test_array.py kills and cancels tasks.
pytestmark = [pytest.mark.timeout(900), pytest.mark.nightly]

SHARDS, TASKS, TIMES = 24, 2, 20


SLOW = """
import time

def square(xp, block):
    time.sleep({seconds})
    return block @ block
"""
"""A shard that takes a while, so that tasks are met in the middle of one."""


def slow(night: ArrayNight, seconds: float, shards: int = SHARDS, **values: object) -> np.ndarray:
    """Configure shards that take so long each, for tasks that pull them."""
    (night.workspace.root / "slow.py").write_text(SLOW.format(seconds=seconds))
    over = {"product": "slow.py:square", "array_tasks": TASKS, **values}
    return night.of(shards, **over)


def pullers(night: ArrayNight) -> list[int]:
    """The first process of each task of a workspace."""
    script = str(night.workspace.root / "scripts" / "work.py")
    found = {pid: processes.words(pid) for pid in processes.running()}
    return sorted(
        pid for pid, words in found.items()
        if script in words and any(word.startswith("--round=") for word in words)
        and not any(word.startswith("--seat=") for word in words)
    )  # fmt: skip


def family(pid: int) -> list[int]:
    """A process and all that it has started, as a scheduler ends them together."""
    return [pid, *(one for child in processes.children(pid) for one in family(child))]


def strike(night: ArrayNight, number: signal.Signals) -> set[str] | None:
    """Send a signal to all processes of one task; the shards that it had begun and not finished.

    None where no task works.
    """
    found = pullers(night)
    if not found:
        return None
    struck = family(found[0])
    send(signal.SIGSTOP, struck)
    journals = night.workspace.file("logs/multiply").glob("*.starts")
    begun = {path.stem[:5] for path in journals if starter(path) in struck} - set(night.receipts())
    send(number, struck)
    send(signal.SIGCONT, struck)
    return begun


def send(number: signal.Signals, pids: list[int]) -> None:
    """Send a signal to some processes, of which some may be gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def starter(journal: Path) -> int | None:
    """The process that was the last to begin a shard; None where its journal is not there."""
    with contextlib.suppress(FileNotFoundError, IndexError):
        return int(journal.read_text().splitlines()[-1].split("\t")[2])
    return None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.fault("a worker or task that is killed")
def test_a_task_that_is_ended_loses_nothing(array_night, number):
    """At random moments: only what was under way is computed again, and the bits are the same.

    That is a shard, and where the disk is slow the one before, which is still being written.
    """
    night, moments = array_night, random.Random(number)
    stack = slow(night, 0.5, shards=12 * TIMES)
    run = night.start(*MULTIPLY)
    struck = lost = 0
    while struck < TIMES:
        night.wait_for("a task works", lambda: pullers(night) and night.receipts())
        time.sleep(moments.uniform(0, 4))
        if run.poll() is not None:
            break
        if (begun := strike(night, number)) is not None:
            assert len(begun) <= 2
            struck, lost = struck + 1, lost + len(begun)
    assert run.wait(timeout=600) == 0, night.output()
    assert struck >= 2
    starts = night.starts()
    assert set(starts) == set(night.receipts())
    assert len(starts) == 12 * TIMES
    assert sum(starts.values()) - len(starts) <= lost
    assert np.array_equal(night.products(), stack @ stack)
    if number == signal.SIGTERM:
        assert not list(night.workspace.file("failed").glob("*")), "nobody is blamed"


@pytest.mark.fault("a limit of run time")
def test_a_task_leaves_before_its_time_is_up(array_night: ArrayNight) -> None:
    """A minute for each task, shards of 4 s: none is cut off, others go on, none starts twice."""
    night = array_night
    slow(night, 4.0)
    minute = ("--set-resources", "multiply:runtime=1")
    done = night.run(*MULTIPLY, *minute)
    assert done.code == 0, done.output + night.log()
    assert night.starts() == Counter({f"{i:05}": 1 for i in range(SHARDS)})
    assert night.arrays() >= 2
    assert not list(night.workspace.file("failed").glob("*")), "nobody is blamed"
    logs = night.workspace.file("logs/array").glob("*/*.log")
    assert any("the run time is nearly up" in log.read_text() for log in logs)


CUTS = 20

OVERLONG = """
import random, time
from pathlib import Path

HERE = Path(__file__).parent

def square(xp, block):
    shard = int(block[0, 0, 0])
    met = HERE / f"met.{shard}"
    if shard % 3 == 2 and not met.exists():
        met.touch()
        time.sleep(1000)
    time.sleep(random.Random(shard).uniform(0, 8))
    return block @ block
"""
"""Every third shard takes longer than its task has, but only the first time."""


@pytest.mark.fault("a limit of run time")
def test_a_shard_that_is_cut_off_is_all_that_is_lost(array_night: ArrayNight) -> None:
    """Twenty tasks are ended in the middle of a shard: these are begun again, and no others.

    No task can foresee it, as its shards before took seconds. When it begins that shard is random.
    """
    night = array_night
    (night.workspace.root / "overlong.py").write_text(OVERLONG)
    stack = night.of(3 * CUTS, product="overlong.py:square", array_tasks=CUTS)
    done = night.run(*MULTIPLY, "--set-resources", "multiply:runtime=1", timeout=880)
    assert done.code == 0, done.output + night.log()
    cut = {f"{i:05}": 2 if i % 3 == 2 else 1 for i in range(3 * CUTS)}
    assert night.starts() == Counter(cut)
    assert np.array_equal(night.products(), stack @ stack)
