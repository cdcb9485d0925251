"""The byte model against the memory that real processes take."""

import subprocess
import sys

import numpy as np
import pytest
from shardwise.files.paths import STATISTICS
from shardwise.plan import memory
from shardwise.units import MIB

from tests import factories
from tests.factories import command, nightly, save

# A small extra process starts the command, because the peak that the kernel reports for a child is
# never less than what its parent held.
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
    return int(done.stdout) * 1024


OWN_MIB = 190
"""MiB for interpreter, NumPy, numba and threads; arrays may not use the rest of PYTHON_BYTES."""

GENEROUS = memory.PYTHON_BYTES - OWN_MIB * MIB


def multiply(made, *words):
    """The command line that computes the only shard of a plan."""
    return command("multiply", "--plan", made.results.plan, "--shard", "00000", *words)


LARGE = (2, 2503, 2503)


@pytest.mark.parametrize(("left", "right", "order", "own"), [
    # A stack of 100 MB.
    (((64, 640, 640), "float32"), None, "F", {"keep": "sum", "verify": False}),
    nightly(((64, 640, 640), "float32"), None, "C", {"keep": "products"}),
    nightly(((64, 640, 640), "float32"), None, "C", {"keep": "sum"}),
    # One matrix fills a batch: its copies, proof and sum.
    ((LARGE, "float32"), None, "C", {"keep": "sum"}),
    *(nightly((LARGE, dtype), None, "C", {"keep": "sum"}) for dtype in ("float16", "int8")),
    # Narrow integers, which are widened; tiny matrices, whose proof is larger than they are.
    nightly(((3000, 1, 10_007), "int8"), ((3000, 10_007, 1), "int8"), "C", {}),
    (((1_000_000, 2, 2), "float32"), None, "C", {}),
])  # fmt: skip
def test_multiply_stays_within_its_model(tmp_path, left, right, order, own):
    """The real peak is at most what the plan asks for."""
    over = {"product": "A @ B" if right else "A @ A", "materialize": False, "shards": 1, **own}
    made = factories.plan(tmp_path, np.ones(*left, order=order), right and np.ones(*right), **over)
    assert peak(multiply(made)) <= made.shards["00000"].memory - GENEROUS


def test_a_task_with_less_memory_takes_less(tmp_path):
    """With --mem-mb below the plan, batches are smaller, and the peak stays below --mem-mb."""
    path = save(tmp_path / "a.npy", np.ones((170, 640, 640), "float32"))
    over = {"materialize": False, "shards": 1}
    made = factories.plan(tmp_path, input=str(path), **over)
    planned = made.shards["00000"].memory
    less = (planned - 32 * MIB) // MIB
    assert peak(multiply(made, "--mem-mb", less)) <= less * MIB - GENEROUS
    assert (np.load(factories.file(made, "product"), mmap_mode="r")[::50] == 640).all()


@pytest.fixture(scope="module")
def loops(tmp_path_factory):
    """Compile the loops of the reduce first: that happens once per machine, and takes more."""
    for dtype in ("float32", "float64"):
        folder = tmp_path_factory.mktemp(dtype)
        path = save(folder / "a.npy", np.ones((4, 2, 2), dtype))
        made = factories.listed(factories.plan(folder, input=str(path), shards=2))
        words = ("--ranks", 2, "--statistics", *STATISTICS)
        peak(command("reduce", "--plan", made.results.plan, *words))


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize(("ranks", "keep", "dtype", "dim", "matrices", "names"), [
    (1, "products", "float32", 8, 1_000_000, ["sum"]),
    nightly(1, "products", "float32", 2500, 4, ["sum", "std", "min", "max"]),
    nightly(1, "sum", "float32", 2500, 2, ["sum"]),
    # Two ranks share the products of one stripe, and exchange the state of every statistic.
    (2, "products", "float64", 362, 150, [*STATISTICS]),
])  # fmt: skip
def test_the_reduce_stays_within_its_model(tmp_path, ranks, keep, dtype, dim, matrices, names):
    """A rank takes no more than is asked for one rank, whatever it adds, and however much."""
    path = save(tmp_path / "a.npy", np.ones((matrices, dim, 1), dtype))
    over = {"keep": keep, "product": "A @ A.T", "materialize": False, "shards": 2}
    made = factories.listed(factories.plan(tmp_path, input=str(path), **over))
    words = ("--ranks", ranks, "--statistics", *names)
    most = memory.REDUCE_RANK_BYTES + (32 * MIB if "std" in names else 0)
    assert peak(command("reduce", "--plan", made.results.plan, *words)) <= most
    total = np.load(made.results.statistic("sum"), mmap_mode="r")
    assert (total[:: dim // 4] == matrices).all()
