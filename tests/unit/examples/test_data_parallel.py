"""The data-parallel example: the same training on any number of ranks."""

import os
import runpy
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from tests.factories import ROOT

PROGRAM = ROOT / "examples" / "data_parallel" / "train.py"
SAMPLES, EPOCHS = 1497, 3
BOUND = 1e-12
"""The largest relative difference of losses that README.md allows."""


example = SimpleNamespace(**runpy.run_path(PROGRAM))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Losses, accuracies and parameters of one rank and of two, which the command starts itself."""
    found = {}
    for ranks in (1, 2):
        folder = tmp_path_factory.mktemp("ranks") / "results"
        words = ["--ranks", str(ranks), "--epochs", str(EPOCHS), "--results", str(folder)]
        done = subprocess.run(
            [sys.executable, str(PROGRAM), *words],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr
        curve = np.loadtxt(folder / "loss.tsv", skiprows=1)
        assert curve[:, 0].tolist() == list(range(EPOCHS))
        found[ranks] = (curve[:, 1], curve[:, 2], np.load(folder / "parameters.npy"))
        assert sorted(path.name for path in folder.iterdir()) == ["loss.tsv", "parameters.npy"]
        assert f"epoch {EPOCHS - 1}: loss {curve[-1, 1]:.6f}" in done.stderr
    return found


def test_it_learns_the_same_on_any_number_of_ranks(runs):
    """The loss falls, nine digits in ten are read right; ranks change nothing but rounding."""
    losses, accuracies, parameters = runs[2]
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
