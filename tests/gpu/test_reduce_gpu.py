"""The reduce: the same bits, however the work is cut and shared, on NumPy and on cupy."""

import json
import os
import subprocess

import pytest
from shardwise.mpi import launch

from tests.factories import ROOT, SCRIPTS
from tests.gpu.conftest import needs_gpu


@pytest.mark.parametrize(("backend", "ranks", "seed", "ways"), [
    ("numpy", 4, 7, 12),
    *(pytest.param("cupy", 3, seed, 36, marks=needs_gpu) for seed in (1, 2)),
])  # fmt: skip
def test_no_way_to_cut_and_share_the_work_changes_a_bit(tmp_path, backend, ranks, seed, ways):
    """Random stacks, shards, ranks, orders, pieces, batches, and both keeps: the same files."""
    program = ["-m", "tests.reduce_program", str(tmp_path), backend, str(seed), str(ways)]
    words, variables = launch.call(ranks, None, program)
    paths = os.pathsep.join([str(SCRIPTS), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, cwd=ROOT, timeout=250,
        env=variables | {"PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"tried": ways, "differ": []}
