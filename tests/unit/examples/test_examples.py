"""The examples can be planned, and recover what went into their inputs."""

import json
import runpy
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from shardwise.plan import config, config_file, planner

from tests import factories


def program(name):
    """What a program of an example defines."""
    return SimpleNamespace(**runpy.run_path(factories.ROOT / "examples" / name))


CONFIGS = sorted((factories.ROOT / "examples").glob("*/config.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=[path.parent.name for path in CONFIGS])
def test_a_config_fits_the_input_beside_it(path, tmp_path, monkeypatch):
    """A program makes the input, and planning tries the function on one of its matrices."""
    folder = shutil.copytree(path.parent, tmp_path / "examples" / path.parent.name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(folder)
    runpy.run_path(str(folder / "make_input.py"), run_name="__main__")
    asked = config_file.read_files([folder / "config.yaml"]) | {"backend": "numpy"}
    assert planner.make(config.load(asked)).problem.matrices > 1


def test_the_components_of_the_digits(tmp_path):
    """The first direction explains 15 % of the variance, and the picture can be drawn."""
    from sklearn.datasets import load_digits

    rows = load_digits().data
    over = {"product": "A.T @ A", "covariance": True, "keep": "sum", "shards": 4}
    made = factories.plan(tmp_path, rows[:, None, :].astype("float32"), **over)
    factories.reduced(factories.listed(made))
    found = np.load(made.results.statistic("covariance"))
    picture = program("covariance/picture.py")
    assert picture.components(found, 2)[1] == pytest.approx([0.149, 0.136], abs=1e-3)
    picture.draw(made.results.root, tmp_path / "digits.png")
    assert (tmp_path / "digits.png").stat().st_size > 10_000


def test_each_layer_has_a_sum_of_its_own(tmp_path):
    """The sums are in the order of the layers' names and recover the spreads that went in."""
    layers = program("layers/make_input.py")
    stack, names = layers.activations()
    own = {"product": "A.T @ A", "keep": "sum", "shards": 4}
    own["labels"] = str(factories.save(tmp_path / "labels.npy", names))
    made = factories.listed(factories.plan(tmp_path, stack, **own))
    factories.reduced(made)
    listed = json.loads(made.results.label_names.read_text())
    assert listed == {"labels": sorted(layers.SPREADS), "matrices": [layers.BATCHES] * 3}
    for name, total in zip(listed["labels"], np.load(made.results.statistic("sums")), strict=True):
        tokens = layers.BATCHES * layers.TOKENS
        spread = np.sqrt(np.diagonal(total) / tokens) / np.arange(1, layers.FEATURES + 1)
        np.testing.assert_allclose(spread, layers.SPREADS[name], rtol=0.1)


def test_the_cross_spectra_have_the_delay_between_sensors(tmp_path):
    """The sum is Hermitian and gives the delay, although the noise has four times the power."""
    spectra = program("spectra/make_input.py")
    made = factories.plan(tmp_path, spectra.segments(), product="A @ A.H", keep="sum", shards=3)
    total = factories.reduced(factories.listed(made))
    np.testing.assert_allclose(total, total.conj().T, rtol=1e-6)
    assert spectra.delay(total) == pytest.approx(spectra.DELAY, rel=0.05)
