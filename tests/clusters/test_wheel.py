"""The command of a wheel on a real scheduler, in a user's folder, with compressed inputs."""

import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest
import yaml
import zarr

from tests import wheel
from tests.unit.observe.test_audit import finished

# By day tests/workflow/test_command.py runs it without a scheduler.
pytestmark = [pytest.mark.timeout(600), pytest.mark.nightly]

INPUTS = {"jobs": "stack.h5:/frames", "array": "stack.zarr", "mpi": "stack.h5:/frames"}
"""By dispatch; both are compressed."""


@pytest.fixture(scope="session")
def bin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the command is."""
    return wheel.installed(tmp_path_factory.mktemp("wheel"))


@pytest.mark.parametrize("dispatch", INPUTS)
def test_a_run_has_the_bits_of_the_same_npy(idle, dispatch, bin_folder, tmp_path):
    """`init`, a line for the site in the profile, a run; other shards of a `.npy` sum the same."""
    env = wheel.environment(bin_folder, idle.env() | idle.variables)

    def call(*words: str) -> str:
        line = [bin_folder / "shardwise", *words]
        done = subprocess.run(
            line, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    stack = np.random.default_rng(0).standard_normal((12, 7, 7), "float32")
    np.save(tmp_path / "stack.npy", stack)
    with h5py.File(tmp_path / "stack.h5", "w") as file:
        file.create_dataset("frames", data=stack, chunks=(5, 7, 7), compression="gzip")
    zarr.create_array(tmp_path / "stack.zarr", data=stack, chunks=(5, 7, 7))  # zstd by itself
    call("init", "--profile", idle.profile)
    profile = tmp_path / "profiles" / idle.profile / "config.yaml"
    with profile.open("a") as lines:
        lines.write(f"precommand: 'export MPI4PY_LIBMPI={wheel.MPI}'\n")
    own = {"input": INPUTS[dispatch], "dispatch": dispatch, "results": "results/mine"}
    config = own | {"shards": 2, "backend": "numpy", "keep": "sum"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    assert "shardwise: done: results/mine/sum.npy" in call("run", *idle.quick)
    plain = finished(tmp_path / "plain", stack, shards=3, keep="sum").results
    result = tmp_path / "results" / "mine" / "sum.npy"
    assert result.read_bytes() == plain.statistic("sum").read_bytes()
    assert "whole" in call("verify", "results/mine")
    assert "make " not in call("doctor")
