"""Which shard a task of an array job computes, from what its scheduler says."""

import os
import re
import subprocess

import numpy as np
import pytest
from shardwise.dispatch.array import task
from shardwise.dispatch.schedulers.common import Array
from shardwise.dispatch.schedulers.slurm import Slurm
from shardwise.errors import InputError
from shardwise.plan import plan as plans

from tests import factories
from tests.factories import run


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """A plan of four shards."""
    folder = tmp_path_factory.mktemp("plan")
    return factories.plan(folder, factories.stack((8, 3, 3)), shards=4)


@pytest.mark.parametrize(
    ("environ", "shard"),
    [
        ({"SLURM_ARRAY_TASK_ID": "0"}, "00000"),
        ({"SGE_TASK_ID": "1"}, "00000"),
        ({"SLURM_ARRAY_TASK_ID": "3", "SGE_TASK_ID": "undefined"}, "00003"),
    ],
)
def test_the_number_of_the_task_is_that_of_the_shard(plan, environ, shard):
    """Slurm counts from 0, Grid Engine from 1."""
    number = task.number(environ)
    assert task.shard(plan, number) == shard
    assert task.shard(plans.load(plan.results.plan, number), number) == shard


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, "none of them is set"),
        ({"SGE_TASK_ID": "undefined"}, "SGE_TASK_ID=undefined"),
        ({"SLURM_ARRAY_TASK_ID": "x"}, "must be a number"),
        ({"SLURM_ARRAY_TASK_ID": "4"}, "shard number 4, but .* has 0 to 3"),
        ({"SGE_TASK_ID": "0"}, "shard number -1"),
    ],
)
def test_a_task_without_a_shard_is_bad_input(plan, environ, words):
    """Outside of an array, and beyond the plan, the message says how to submit."""
    with pytest.raises(InputError, match=words):
        task.shard(plan, task.number(environ))


def test_a_task_computes_its_shard(plan):
    """The command line of an array's task, as Slurm starts it."""
    own = os.environ | {"SLURM_ARRAY_TASK_ID": "2"}
    words = ("--plan", plan.results.plan, "--array-task")
    done = run("multiply", *words, env=own)
    assert done.returncode == 0, done.stderr
    expected = factories.stack((8, 3, 3))[4:6]
    assert np.array_equal(np.load(plan.results.product("00002")), expected @ expected)


def test_a_set_up_line_that_fails_ends_the_task(plan):
    """With 75, before it claims anything, and its log says why."""
    array = Array("slurm", "run", "d", "name", 1, (0, 1), 2)
    folder = plan.results.array_folder("run")
    folder.mkdir(parents=True)
    setup = "export A='it is'; [ \"$A\" = 'it is not' ]"
    text = task.script(plan, array, Slurm.own_index, setup, 500)
    (folder / "task.sh").write_text(text)
    env = {"PATH": "/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_JOB_ID": "7"}
    done = subprocess.run(["bash", folder / "task.sh"], env=env, check=False)
    assert done.returncode == 75
    assert (folder / "name.number").read_text() == "7\n"
    log = (folder / "name.1.log").read_text()
    assert "ERROR the profile's set-up line (precommand) ended with 1" in log
    assert "--array-task" not in log


def test_the_set_up_line_counts_as_run_time(plan, monkeypatch):
    """Grid Engine counts from the begin of the script, the task from its own."""
    monkeypatch.setattr(task.sys, "executable", "echo")
    array = Array("uge", "run", "d", "timed", 1, (0, 1), 2)
    folder = plan.results.array_folder("run")
    folder.mkdir(parents=True, exist_ok=True)
    # Bash takes SECONDS for the time since the script's start.
    script = task.script(plan, array, "index=1 job=7", "SECONDS=100", None, 3600.0)
    subprocess.run(["bash", "-c", script], check=True)
    (told,) = re.findall(r"--run-time=(\d+)", (folder / "timed.1.log").read_text())
    assert 3400 < int(told) <= 3500
