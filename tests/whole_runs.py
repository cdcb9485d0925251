"""Whole runs under `dispatch: pool` and `mpi`, the same under every scheduler.

The fixtures `night` and `dispatch` are the importing module's own.
"""

import os
import shlex
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests import fake_devices
from tests.night import Night, sum_of_squares

DEVICES = {"pool": 1, "mpi": 2}
"""How many GPUs the profiles ask for as they are shipped."""


def test_the_digits_have_the_same_bits(night: Night, dispatch: str, tmp_path: Path) -> None:
    """One job computes all shards on the devices that the profile asks for; jobs have no more."""
    digits = load_digits().images
    np.save(night.workspace.root / "digits.npy", digits)
    own = {"input": "digits.npy", "shards": 24, "materialize": False}
    night.workspace.configure(**own, dispatch=dispatch)
    fake = fake_devices.environment(4, tmp_path / "leases")
    exported = shlex.join(f"{name}={value}" for name, value in fake.items())
    done = night.run("--precommand", f"export {exported}")
    assert done.code == 0, done.output
    assert night.sum().tobytes() == sum_of_squares(digits).tobytes()
    assert night.starts() == Counter([dispatch, "reduce"])
    devices = {(r["node"], r["device"]["uuid"]) for r in night.receipts().values()}
    assert len(devices) == DEVICES[dispatch]
    night.workspace.configure(**own, dispatch="jobs")
    assert night.workspace.run("--dry-run", profile=night.profile).jobs == set()


@pytest.mark.fault("snakemake killed by -9 and started again")
@pytest.mark.fault("two runs at once")
def test_a_killed_snakemake_never_costs_a_shard_twice(night: Night, dispatch: str) -> None:
    """Beside the living job of a killed run a new one does not start; after it, only the sum."""
    night.folder_of(6)
    own = {"input": "stack", "shards": 6, "materialize": False, "backend": "numpy"}
    night.workspace.configure(**own, dispatch=dispatch)
    run = night.start(*night.held())
    night.wait_for("the job runs", lambda: night.running(dispatch))
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    assert night.run("--unlock").code == 0
    refused = night.run()
    assert refused.code == 75
    assert "1 jobs of an earlier run still wait or work on results/default" in refused.output

    night.release()
    night.wait_for("the queue is empty", night.idle)
    assert night.starts() == Counter([dispatch])
    plan = night.workspace.run("--dry-run", profile=night.profile)
    assert plan.jobs == {"ledger", "reduce", "report"}, plan.output
