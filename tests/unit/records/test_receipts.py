"""Receipts: what they say of their job; threads may read them at once; some are long."""

import json
import os
import subprocess
import sys

import pytest
from shardwise.records import receipts

from tests import factories

# Each round reloads the module, so that eight threads are the first to use its classes.
ROUNDS = """
import importlib, sys, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

name, reader, file, *kind = sys.argv[1:]
module, gate = importlib.import_module(name), threading.Barrier(8)
sys.setswitchinterval(1e-6)

def read(_):
    gate.wait()
    return getattr(module, reader)(Path(file), *(getattr(module, each) for each in kind))

with ThreadPoolExecutor(8) as pool:
    for _ in range(50):
        importlib.reload(module)
        one, *others = pool.map(read, range(8))
        assert others == [one] * 7
"""


@pytest.mark.parametrize("what", ["receipt", "plan"])
def test_threads_may_be_the_first_to_read(tmp_path, what):
    """All threads get the same, and the process survives, however they are scheduled."""
    made = factories.computed(factories.plan(tmp_path, factories.stack((4, 4, 4)), shards=2))
    words = {
        "receipt": ("records.receipts", "read", factories.file(made, "receipt"), "ProductReceipt"),
        "plan": ("plan.plan", "load", made.results.plan),
    }[what]
    line = [sys.executable, "-c", ROUNDS, f"shardwise.{words[0]}", *map(str, words[1:])]
    env = os.environ | {"PYTHONPATH": str(factories.SCRIPTS)}
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("environ", "job"), [
    ({"SLURM_JOB_ID": "7"}, "7"), ({"JOB_ID": "8", "SGE_ROOT": "/opt/ge"}, "8"),
    ({"JOB_ID": "of another program"}, None),
])  # fmt: skip
def test_a_job_is_that_of_a_scheduler(monkeypatch, environ, job):
    """Receipts tell its number, and nothing that another program keeps under the same name."""
    for name in ("SLURM_JOB_ID", "JOB_ID", "SGE_ROOT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert receipts.describe_origin("shard", 0.0)["job"] == job


def test_a_receipt_may_name_the_nodes_of_many_long_labels(tmp_path):
    """JSON spells a letter that is not ASCII with six bytes."""
    made = factories.computed(factories.plan(tmp_path, factories.stack((2, 2, 2)), shards=1))
    path, labels = factories.file(made, "receipt"), ("語" * 100,) * 3000
    factories.rewritten(path, file=json.loads(path.read_bytes())["file"] | {"labels": labels})
    assert factories.receipt(made).file.labels == labels
