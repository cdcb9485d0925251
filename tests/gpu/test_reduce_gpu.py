"""The reduce of results from a GPU: the same bits, however the work is cut and shared."""

import json
import os
import subprocess
import sys

import pytest
from shardwise.errors import InputError
from shardwise.mpi import launch

from tests.factories import ROOT, SCRIPTS
from tests.gpu.conftest import needs_gpu


@needs_gpu
@pytest.mark.parametrize("seed", [1, 2])
def test_no_way_to_cut_and_share_the_work_changes_a_bit(tmp_path, seed):
    """Random stacks, shards, ranks, orders, pieces, batches, and both keeps: the same files."""
    try:
        launcher = launch.build_command(3)
    except InputError as error:
        pytest.skip(f"needs an MPI launcher: {error}")
    program = [sys.executable, "-m", "mpi4py", "-m", "tests.reduce_program"]
    paths = os.pathsep.join([str(SCRIPTS), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*launcher, *program, str(tmp_path), "cupy", str(seed), "36"],
        capture_output=True, text=True, check=False, cwd=ROOT, timeout=250,
        env=launch.build_environment(3) | {"PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"tried": 36, "differ": []}
