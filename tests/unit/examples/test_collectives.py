"""The collectives of the data-parallel example on 1 to 4 ranks."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from collectives import shard_indices
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import ROOT, nightly
from tests.unit.examples import collective_checks


@pytest.mark.parametrize("ranks", [3, nightly(2), nightly(4)])
def test_ranks_agree(tmp_path, ranks):
    """Every rank passes every check on every communicator, also on one of a single rank."""
    mpiexec = str(Path(sys.executable).with_name("mpiexec"))
    line = [mpiexec, "-n", str(ranks), sys.executable, "-W", "error", "-m", "mpi4py"]
    path = os.pathsep.join([str(ROOT / "examples" / "data_parallel"), str(ROOT)])
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    line += [collective_checks.__file__, str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=env)
    files = [tmp_path / str(rank) for rank in range(ranks)]
    passed = [file.read_text().split() if file.exists() else [] for file in files]
    assert passed == [collective_checks.CHECKS] * ranks, done.stdout + done.stderr


@given(
    st.integers(0, 200), st.integers(1, 9), st.integers(0, 1000), st.none() | st.integers(0, 2**64)
)
def test_ranks_share_the_samples_as_one_rank_takes_them(size, ranks, epoch, seed):
    """Dealt out in turn, the ranks' samples are those of one rank, in its order."""
    alone = shard_indices(size, 0, 1, seed, epoch)
    dealt = np.empty_like(alone)
    for rank in range(ranks):
        dealt[rank::ranks] = shard_indices(size, rank, ranks, seed, epoch)
    assert dealt.tolist() == alone.tolist()
    assert sorted(alone.tolist()) == list(range(size))
