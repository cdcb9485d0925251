"""The collectives on 1 to 4 ranks: what they give, and what they refuse."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.errors import InputError
from shardwise.reduce.collectives import shard_indices

from tests.factories import ROOT, SCRIPTS, nightly
from tests.unit.reduce import collective_checks

PROGRAM = Path(collective_checks.__file__)


def launched(ranks, folder, *names):
    """Run checks on so many ranks; what they printed, and the checks that each rank passed."""
    mpiexec = str(Path(sys.executable).with_name("mpiexec"))
    line = [mpiexec, "-n", str(ranks), sys.executable, "-W", "error", "-m", "mpi4py"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{SCRIPTS}:{ROOT}"}
    done = subprocess.run(
        [*line, str(PROGRAM), str(folder), *names],
        capture_output=True,
        text=True,
        check=False,
        env=env,
    )
    files = [folder / str(rank) for rank in range(ranks)]
    passed = [file.read_text().split() if file.exists() else [] for file in files]
    return done.stdout + done.stderr, passed


@pytest.mark.parametrize("ranks", [1, nightly(2), 3, nightly(4)])
def test_ranks_agree(tmp_path, ranks):
    """Every rank passes every check on every communicator."""
    output, passed = launched(ranks, tmp_path)
    assert passed == [collective_checks.CHECKS] * ranks, output


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_more_than_2_31_elements(tmp_path):
    """An array of 2³¹ + 16 elements is broadcast; it takes 9 GB of memory."""
    output, passed = launched(2, tmp_path, "large_counts")
    assert passed == [["large_counts"]] * 2, output


@given(
    st.integers(0, 200), st.integers(1, 9), st.none() | st.integers(0, 2**64), st.integers(0, 2**40)
)
def test_every_sample_belongs_to_one_rank(size, ranks, seed, epoch):
    """The ranks' samples are all samples, once, and their numbers differ by one at most."""
    parts = [shard_indices(size, rank, ranks, seed, epoch) for rank in range(ranks)]
    assert all(part.dtype == np.int64 for part in parts)
    assert sorted(np.concatenate(parts).tolist()) == list(range(size))
    lengths = [len(part) for part in parts]
    assert max(lengths) - min(lengths) <= 1


@given(st.integers(0, 200), st.integers(1, 9), st.integers(0, 1000), st.none() | st.just(5))
def test_what_ranks_take_first_does_not_depend_on_their_number(size, ranks, first, seed):
    """The first samples of all ranks together are those that one rank would take."""
    first = min(first, size)
    alone = shard_indices(size, 0, 1, seed)[:first]
    parts = [
        shard_indices(size, rank, ranks, seed)[: -(-(first - rank) // ranks)]
        for rank in range(min(ranks, first))
    ]
    together = np.concatenate(parts) if parts else np.empty(0)
    assert sorted(together.tolist()) == sorted(alone.tolist())


def test_the_order_of_this_version_of_numpy():
    """Fixed figures: an order that changes with a new NumPy is noticed here."""
    assert shard_indices(8, 0, 1, seed=0, epoch=1).tolist() == [1, 3, 7, 6, 0, 4, 2, 5]
    assert shard_indices(8, 0, 1, seed=0, epoch=2).tolist() != [1, 3, 7, 6, 0, 4, 2, 5]
    assert shard_indices(7, 0, 3, epoch=5).tolist() == [0, 3, 6]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [((5, 2, 2), "rank 2 of 2"), ((5, -1, 2), "rank -1 of 2"), ((5, 0, 0), "rank 0 of 0"),
     ((-5, 0, 1), "of -5")],
)  # fmt: skip
def test_impossible_shards_are_refused(arguments, told):
    """A message has the numbers."""
    with pytest.raises(InputError, match=told):
        shard_indices(*arguments)
