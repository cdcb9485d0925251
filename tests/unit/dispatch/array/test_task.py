"""Which shard a task of an array job computes, from what its scheduler says."""

import os

import numpy as np
import pytest
from shardwise.dispatch.array import task
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
    ("environ", "first", "shard"),
    [
        ({"SLURM_ARRAY_TASK_ID": "0"}, 0, "00000"),
        ({"SLURM_ARRAY_TASK_ID": "1"}, 2, "00003"),
        ({"SGE_TASK_ID": "1"}, 0, "00000"),
        ({"SGE_TASK_ID": "2"}, 2, "00003"),
        ({"SLURM_ARRAY_TASK_ID": "3", "SGE_TASK_ID": "undefined"}, 0, "00003"),
    ],
)
def test_the_number_of_the_task_is_that_of_the_shard(plan, environ, first, shard):
    """Slurm counts from 0, Grid Engine from 1; an array may begin later in the plan."""
    number = task.number(first, environ)
    assert task.shard(plan, number) == shard
    assert task.shard(plans.load(plan.results.plan, number), number) == shard


@pytest.mark.parametrize(
    ("environ", "first", "words"),
    [
        ({}, 0, "none of them is set"),
        ({"SGE_TASK_ID": "undefined"}, 0, "SGE_TASK_ID=undefined"),
        ({"SLURM_ARRAY_TASK_ID": "x"}, 0, "must be a number"),
        ({"SLURM_ARRAY_TASK_ID": "4"}, 0, "shard number 4, but .* has 0 to 3"),
        ({"SLURM_ARRAY_TASK_ID": "1"}, 3, "shard number 4"),
        ({"SGE_TASK_ID": "0"}, 0, "shard number -1"),
    ],
)
def test_a_task_without_a_shard_is_bad_input(plan, environ, first, words):
    """Outside of an array, and beyond the plan, the message says how to submit."""
    with pytest.raises(InputError, match=words):
        task.shard(plan, task.number(first, environ))


def test_a_task_computes_its_shard(plan):
    """The command line of an array's task, as Slurm starts it."""
    own = os.environ | {"SLURM_ARRAY_TASK_ID": "1"}
    words = ("--plan", plan.results.plan, "--array-task", "--array-first", 1)
    done = run("multiply", *words, env=own)
    assert done.returncode == 0, done.stderr
    expected = factories.stack((8, 3, 3))[4:6]
    assert np.array_equal(np.load(plan.results.product("00002")), expected @ expected)
    assert not plan.results.starts("00002").exists()
    assert plan.results.living_array.exists()
    assert not plan.results.living.exists()


def test_no_task_is_bad_input(plan):
    """Outside of an array job the command ends with 2."""
    env = {k: v for k, v in os.environ.items() if k not in task._FIRST}
    assert run("multiply", "--plan", plan.results.plan, "--array-task", env=env).returncode == 2
