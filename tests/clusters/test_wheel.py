"""The command of a wheel on a real scheduler, in a user's folder, with a compressed input."""

import functools

import h5py
import numpy as np
import pytest
import yaml

from tests import factories, wheel

# By day tests/workflow/test_command.py runs it without a scheduler.
pytestmark = [pytest.mark.timeout(600), pytest.mark.nightly]


@pytest.mark.parametrize("dispatch", ["jobs", "array", "mpi"])
def test_a_run_has_the_right_sum(idle, dispatch, tmp_path):
    """After `init`, and with a line for the site in the profile, `run` gives NumPy's sum."""
    bin_folder = wheel.installed(tmp_path)
    call = functools.partial(wheel.call, bin_folder, tmp_path, env=idle.env() | idle.variables)
    stack = factories.stack((12, 7, 7))
    with h5py.File(tmp_path / "stack.h5", "w") as file:
        file.create_dataset("frames", data=stack, chunks=(5, 7, 7), compression="gzip")
    call("init", "--profile", idle.profile)
    with (tmp_path / "profiles" / idle.profile / "config.yaml").open("a") as lines:
        lines.write(f"precommand: 'export MPI4PY_LIBMPI={wheel.MPI}'\n")
    own = {"input": "stack.h5:/frames", "dispatch": dispatch, "results": "mine", "shards": 2}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(own | {"backend": "numpy"}))
    assert "shardwise: done: mine/sum.npy" in call("run", *idle.quick).stderr
    np.testing.assert_array_equal(np.load(tmp_path / "mine/sum.npy"), (stack @ stack).sum(axis=0))
    assert "whole" in call("verify", "mine").stdout
