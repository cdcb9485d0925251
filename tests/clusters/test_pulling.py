"""Tasks of an array that pull shards, on a real scheduler: cut off, preempted, out of time."""

import os
import random
import signal
import time
from collections import Counter

import numpy as np
import pytest
from shardwise.dispatch.array import journal
from shardwise.files.paths import Results

from tests import processes
from tests.clusters.night import MULTIPLY, ArrayNight

pytestmark = pytest.mark.timeout(900)

SHARDS, TASKS = 24, 2


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
    """The first process of each task of a workspace that pulls shards."""
    arrays = journal.noted(Results(night.workspace.file("")))
    wanted = {f"--array-task={array.name}" for array in arrays}
    return sorted(pid for pid in processes.running() if wanted & {*processes.words(pid)})


def family(pid: int) -> list[int]:
    """A process and all that it has started, as a scheduler ends them together."""
    return [pid, *(one for child in processes.children(pid) for one in family(child))]


def strike(night: ArrayNight, number: signal.Signals) -> bool:
    """Send a signal to all processes of one task; whether there was any."""
    found = pullers(night)
    for pid in family(found[0]) if found else ():
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
    return bool(found)


@pytest.mark.parametrize(
    ("site", "number", "times"),
    [
        ("slurm", signal.SIGTERM, 2),
        ("grid_engine", signal.SIGKILL, 2),
        *(
            pytest.param(site, number, 20, marks=pytest.mark.nightly)
            for site in ("slurm", "grid_engine")
            for number in (signal.SIGTERM, signal.SIGKILL)
        ),
    ],
    indirect=["site"],
)
@pytest.mark.fault("a worker or task that is killed")
def test_a_task_that_is_ended_loses_nothing(array_night, number, times):
    """At random moments: only the shard under way is computed again, and the bits are the same."""
    night, moments = array_night, random.Random(times + number)
    stack = slow(night, 0.5, shards=12 * times)
    run = night.start(*MULTIPLY)
    struck = 0
    while struck < times:
        night.wait_for("a task works", lambda: pullers(night) and night.receipts())
        time.sleep(moments.uniform(0, 4))
        if run.poll() is not None:
            break
        struck += strike(night, number)
    assert run.wait(timeout=600) == 0, night.output()
    assert struck >= min(times, 2)
    starts = night.starts()
    assert set(starts) == set(night.receipts())
    assert len(starts) == 12 * times
    assert sum(starts.values()) - len(starts) <= struck
    assert np.array_equal(night.products(), stack @ stack)
    if number == signal.SIGTERM:
        assert "is not tried again" not in night.log()
        assert "follows" not in night.log(), "nobody is blamed"


@pytest.mark.nightly  # run times are counted in minutes
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
    assert "follows" not in night.log(), "nobody is blamed"
    logs = night.workspace.file("logs/array").glob("*/*.log")
    assert any("the run time is nearly up" in log.read_text() for log in logs)
