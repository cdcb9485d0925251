"""A user's own function through the whole workflow: the seismic example, and one that fails."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from shardwise.numerics.binned import BinnedSum, rounded

from tests import processes
from tests.factories import SCRIPTS
from tests.workspace import Workspace


def test_the_seismic_example(workspace: Workspace) -> None:
    """Its records are the propagator's, and an edited file computes all of them again, once."""
    folder = workspace.root / "examples" / "seismic"
    command = [sys.executable, str(folder / "make_input.py")]
    subprocess.run(command, check=True, env={"PYTHONPATH": str(SCRIPTS)})
    config = ("--configfile", "examples/seismic/config.yaml")
    done = workspace.run(*config)
    assert done.code == 0, done.output
    assert "trying examples/seismic/propagator.py:shot on the first matrix" in done.output

    results = workspace.root / "results" / "seismic"
    records = np.concatenate([np.load(p) for p in sorted((results / "products").glob("*.npy"))])
    alone = (
        "import numpy as np, propagator as p; "
        "np.save('alone.npy', p.shot(np, np.load('input.npy')[[0, 17]]))"
    )
    subprocess.run([sys.executable, "-c", alone], check=True, cwd=folder)
    assert records.shape == (24, 600, 121)
    assert records[[0, 17]].tobytes() == np.load(folder / "alone.npy").tobytes()
    expected = BinnedSum(np, (600, 121), records.dtype.name)
    expected.add(records)
    total = np.load(results / "sum.npy")
    assert total.tobytes() == rounded(expected.planes(), records.dtype.name).tobytes()
    np.testing.assert_allclose(total, records.sum(axis=0, dtype="f8"), atol=1e-12)
    assert json.loads((results / "summary.json").read_bytes())["proven"] is False

    again = workspace.run("--dry-run", *config)
    assert again.jobs == set()
    assert "trying" not in again.output
    with open(folder / "propagator.py", "a") as file:
        file.write("# edited\n")
    shards = {f"multiply {shard:05}" for shard in range(4)}
    last = {"ledger", "reduce", "report"}
    assert workspace.run("--dry-run", *config).jobs == {"plan"} | shards | last


def starts(workspace: Workspace) -> list[int]:
    """How often each shard was begun."""
    journals = sorted(workspace.file("logs/multiply").glob("*.starts"))
    return [path.read_text().count("\n") for path in journals]


# Each makes its mess on the third matrix, and where it is tried on the first one.
MESS = """
import atexit, os, pathlib, signal, subprocess, threading, time

def own(xp, block):
    print("garbage", flush=True)
    threading.Thread(target=time.sleep, args=(1000,)).start()
    atexit.register(time.sleep, 1000)
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.chdir(pathlib.Path(__file__).parent / "elsewhere")
    os.environ["PATH"] = "/nowhere"
    return block + 1
"""


@pytest.mark.nightly  # by day: one job in tests/unit/dispatch, the trial in tests/unit/plan
@pytest.mark.parametrize("dispatch", ["jobs", "pool", "mpi"])
def test_whatever_a_function_leaves_the_run_ends_well(workspace: Workspace, dispatch: str) -> None:
    """Threads, children, another folder: the sum is right, in its place, and nothing lives on."""
    stack = np.arange(24.0).reshape(4, 2, 3)
    np.save(workspace.root / "stack.npy", stack)
    (workspace.root / "elsewhere").mkdir()
    (workspace.root / "mine.py").write_text(MESS)
    own = {"input": "stack.npy", "product": "mine.py:own", "shards": 2, "dispatch": dispatch}
    workspace.configure(**own)
    marked = workspace.env = os.environ | {"OF": str(workspace.root)}
    planned = subprocess.run(
        workspace.command("--dry-run"), cwd=workspace.root, capture_output=True, text=True,
        check=False, timeout=120, env=marked,
    )  # fmt: skip
    assert planned.returncode == 0, planned.stderr
    assert "garbage" not in planned.stdout
    done = workspace.run("--cores", "2", timeout=200)
    assert done.code == 0, done.output
    assert np.array_equal(workspace.load("sum.npy"), (stack + 1).sum(axis=0))
    assert starts(workspace) == [1, 1]
    assert not list((workspace.root / "elsewhere").iterdir())
    living = processes.living(processes.running())
    assert not [pid for pid in living if processes.environment(pid).get("OF") == marked["OF"]]


ENDS = """
import os

def own(xp, block):
    if (block == 7).any():
        os._exit(0)
    return block + 1
"""


def test_a_function_that_ends_the_process_is_never_a_success(workspace: Workspace) -> None:
    """In its trial nothing starts; in a job that shard fails at once."""
    told = "ended its process with os._exit(0)"
    stack = np.zeros((6, 2, 3))
    stack[0] = 7
    np.save(workspace.root / "stack.npy", stack)
    (workspace.root / "mine.py").write_text(ENDS)
    own = {"input": "stack.npy", "product": "mine.py:own", "shards": 3, "materialize": False}
    workspace.configure(**own)
    refused = workspace.run()
    assert refused.code == 2
    assert f"your function mine.py:own {told}" in refused.output
    assert not workspace.file("").exists()
    stack[0], stack[3] = 0, 7
    np.save(workspace.root / "stack.npy", stack)
    done = workspace.run("--retries", "2")
    assert done.code == 1
    words = done.output[done.output.index("shardwise: not finished: 2 of 3 shards") :]
    assert f"failed: multiply 00001: product: your function mine.py:own {told}" in words
    assert starts(workspace) == [1, 1, 1]


AGAIN = """
from pathlib import Path

def own(xp, block):
    first = Path(__file__).with_name("results") / "first"
    if first.parent.exists() and not first.exists():
        first.touch()
        raise MemoryError
    return block + 1
"""


def test_only_what_may_pass_is_tried_again(workspace: Workspace) -> None:
    """Lack of memory is; a product that is damaged on the disk is not, until the next run."""
    np.save(workspace.root / "stack.npy", np.ones((2, 2, 3)))
    (workspace.root / "mine.py").write_text(AGAIN)
    workspace.configure(input="stack.npy", product="mine.py:own", shards=1)
    done = workspace.run("--retries", "1")
    assert done.code == 0, done.output
    assert starts(workspace) == [2]
    assert "Trying to restart job" in done.output
    product = workspace.file("products/00000.npy")
    right, moment = product.read_bytes(), product.stat()
    product.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    os.utime(product, ns=(moment.st_atime_ns, moment.st_mtime_ns))
    workspace.file("sum.npy").unlink()
    done = workspace.run("--retries", "3")
    assert done.code == 1
    assert done.output.count("Error in rule reduce") == 1
    assert "Trying to restart job" not in done.output
