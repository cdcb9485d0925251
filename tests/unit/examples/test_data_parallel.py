"""The data-parallel example: the same training on any number of ranks."""

import os
import subprocess
import sys

import numpy as np

from tests.factories import ROOT

PROGRAM = ROOT / "examples" / "data_parallel" / "train.py"
EPOCHS = 3
BOUND = 1e-12  # The largest relative difference of losses that README.md allows.


def train(ranks, folder):
    """Losses, accuracies and parameters; the command itself starts the ranks."""
    words = ["--ranks", str(ranks), "--epochs", str(EPOCHS), "--results", str(folder)]
    line, env = [sys.executable, str(PROGRAM), *words], os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    epochs, losses, accuracies = np.loadtxt(folder / "loss.tsv", skiprows=1, unpack=True)
    assert epochs.tolist() == list(range(EPOCHS))
    assert f"epoch {EPOCHS - 1}: loss {losses[-1]:.6f}" in done.stderr
    return losses, accuracies, np.load(folder / "parameters.npy")


def test_it_learns_the_same_on_any_number_of_ranks(tmp_path):
    """The loss falls, nine digits in ten are read right; ranks change nothing but rounding."""
    losses, accuracies, parameters = train(2, tmp_path / "2")
    alone = train(1, tmp_path / "1")
    np.testing.assert_allclose(losses, alone[0], rtol=BOUND, atol=0)
    np.testing.assert_array_equal(accuracies, alone[1])
    np.testing.assert_allclose(parameters, alone[2], rtol=0, atol=BOUND)
    assert (np.diff(losses) < 0).all()
    assert accuracies[-1] > 0.9
