"""The data-parallel example: the same training on any number of ranks."""

import os
import runpy
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from shardwise.errors import IntegrityError

from tests.factories import ROOT, SCRIPTS

PROGRAM = ROOT / "examples" / "data_parallel" / "train.py"
SAMPLES, EPOCHS = 1497, 3
BOUND = 1e-12
"""The largest relative difference of losses that README.md allows."""


example = SimpleNamespace(**runpy.run_path(PROGRAM))


def trained(folder, *words, before=()):
    """Run the example by hand, without a GPU."""
    options = ("--backend", "numpy", "--epochs", str(EPOCHS))
    return subprocess.run(
        [*before, sys.executable, str(PROGRAM), *words, *options, "--results", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SCRIPTS)},
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Losses, accuracies and parameters of one and three ranks, which the command starts itself."""
    found = {}
    for ranks in (1, 3):
        folder = tmp_path_factory.mktemp("ranks") / "results"
        done = trained(folder, "--ranks", str(ranks))
        assert done.returncode == 0, done.stderr
        curve = np.loadtxt(folder / "loss.tsv", skiprows=1)
        assert curve[:, 0].tolist() == list(range(EPOCHS))
        found[ranks] = (curve[:, 1], curve[:, 2], np.load(folder / "parameters.npy"))
        assert sorted(path.name for path in folder.iterdir()) == ["loss.tsv", "parameters.npy"]
        assert f"epoch {EPOCHS - 1}: loss {curve[-1, 1]:.6f}" in done.stderr
    return found


def test_it_learns_the_same_on_any_number_of_ranks(runs):
    """The loss falls, nine digits in ten are read right; ranks change nothing but rounding."""
    losses, accuracies, parameters = runs[3]
    np.testing.assert_allclose(losses, runs[1][0], rtol=BOUND, atol=0)
    np.testing.assert_array_equal(accuracies, runs[1][1])
    np.testing.assert_allclose(parameters, runs[1][2], rtol=0, atol=BOUND)
    assert (np.diff(losses) < 0).all()
    assert accuracies[-1] > 0.9


def test_one_rank_is_plain_training(runs):
    """A loop without collectives, one matrix of parameters and one-hot labels finds the same."""
    pixels, labels = example.digits()
    seen = np.arange(len(labels)) % 6 != 0
    pixels, labels = np.c_[pixels, np.ones(len(labels))][seen], np.eye(10)[labels[seen]]
    drawn = 0.01 * np.random.default_rng([0, 0]).standard_normal((64, 10))
    parameters = np.r_[drawn, np.zeros((1, 10))]
    for epoch in range(EPOCHS):
        order = np.random.Generator(np.random.PCG64([0, epoch])).permutation(SAMPLES)
        for batch in np.split(order, range(100, SAMPLES, 100)):
            powers = np.exp(pixels[batch] @ parameters)
            likely = powers / powers.sum(axis=1, keepdims=True)
            parameters -= 0.5 * pixels[batch].T @ (likely - labels[batch]) / len(batch)
    np.testing.assert_allclose(runs[1][2], parameters, rtol=0, atol=BOUND)


class TwoRanks:
    """A communicator whose other rank sends what this one does, but for some bits."""

    size = 2

    def __init__(self, flip):
        self._flip = flip

    def Allgather(self, own, ranks):  # noqa: N802 - as in mpi4py
        """Both ranks' buffers."""
        ranks[0], ranks[1] = own, own ^ self._flip


def test_ranks_that_differ_are_an_error():
    """Parameters that are not the same on all ranks are never written."""
    example.check_same(TwoRanks(0), np.ones(3))
    with pytest.raises(IntegrityError, match="different parameters"):
        example.check_same(TwoRanks(1), np.ones(3))


def test_a_wrong_number_of_ranks_is_refused(tmp_path):
    """Ranks of another launcher that are not as many as asked for write nothing."""
    mpiexec = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    done = trained(tmp_path / "results", "--ranks", "3", before=[mpiexec, "-n", "2"])
    assert done.returncode != 0
    assert "train: asked for 3 ranks, but MPI has 2" in done.stderr
    assert "with --launcher" in done.stderr
    assert not (tmp_path / "results").exists()
