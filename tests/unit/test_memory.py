"""The byte model against the memory that real processes take."""

import resource
import subprocess
import sys

import numpy as np
import pytest
from shardwise import plan

from tests import factories
from tests.factories import command, save, settings

# A process of its own starts the command: what the kernel reports of a child is never less than
# what its parent has held, and this one is small.
MEASURE = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""


def peak(words):
    """Largest resident memory of a command, in bytes."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout) * (1 if sys.platform == "darwin" else 1024)


@pytest.mark.parametrize("keep", ["products", "sum"])
def test_multiply_stays_within_its_model(tmp_path, keep):
    """On a stack of 100 MB the real peak is at most what the plan asks for."""
    path = save(tmp_path / "a.npy", np.ones((64, 640, 640), "float32"))
    over = {"keep": keep, "materialize": False, "shards": 1}
    made = factories.plan(tmp_path, input=str(path), **over)
    words = command("multiply", "--plan", made.results.plan, "--shard", "00000")
    assert peak(words) <= made.shards["00000"].memory


def test_multiply_of_narrow_integers_stays_within_its_model(tmp_path):
    """int8 rows and columns with tiny products: the int64 copies are counted."""
    left, right = np.ones((7000, 1, 10_007), "int8"), np.ones((7000, 10_007, 1), "int8")
    over = {"product": "A @ B", "materialize": False, "shards": 1}
    made = factories.plan(tmp_path, left, right, **over)
    words = command("multiply", "--plan", made.results.plan, "--shard", "00000")
    assert peak(words) <= made.shards["00000"].memory


@pytest.mark.parametrize("order", ["C", "F"])
def test_copying_stays_within_its_model(tmp_path, order):
    """shard.py of 300 MB takes no more than its stage asks for, in either order of the file."""
    path = save(tmp_path / "a.npy", np.ones((192, 640, 640), "float32", order=order))
    made = factories.plan(tmp_path, input=str(path), shards=1)
    words = command("shard", "--plan", made.results.plan, "--shard", "00000")
    # What the model grants the interpreter is generous; here the slabs have to fit as well.
    spare = plan.PYTHON_BYTES - 150 * plan.MIB
    assert peak(words) <= plan.copy_memory(made.problem) - spare


def test_the_model_of_a_small_machine_is_no_bluff():
    """A laptop's demo is asked for less than a laptop has."""
    made, _ = factories.planner.make(settings())
    assert max(row.memory for row in made.shards.values()) < 2048 * plan.MIB
    assert resource.getpagesize() < plan.PYTHON_BYTES
