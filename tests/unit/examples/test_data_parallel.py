"""The data-parallel example: the same training on any number of ranks."""

import os
import subprocess
import sys

import numpy as np
import pytest

from tests.factories import ROOT

PROGRAM = ROOT / "examples" / "data_parallel" / "train.py"
EPOCHS = 3
BOUND = 1e-12
"""The largest relative difference of losses that README.md allows."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Losses, accuracies and parameters on one rank and on two, which the command itself starts."""
    found = {}
    for ranks in (1, 2):
        folder = tmp_path_factory.mktemp("ranks") / "results"
        words = ["--ranks", str(ranks), "--epochs", str(EPOCHS), "--results", str(folder)]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        line = [sys.executable, str(PROGRAM), *words]
        done = subprocess.run(line, capture_output=True, text=True, check=False, env=env)
        assert done.returncode == 0, done.stderr
        curve = np.loadtxt(folder / "loss.tsv", skiprows=1)
        assert curve[:, 0].tolist() == list(range(EPOCHS))
        found[ranks] = (curve[:, 1], curve[:, 2], np.load(folder / "parameters.npy"))
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
