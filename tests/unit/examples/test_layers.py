"""The sums of the layers, from one read, have the spreads that went in."""

import json
import runpy
from types import SimpleNamespace

import numpy as np

from tests import factories

layers = SimpleNamespace(**runpy.run_path(factories.ROOT / "examples" / "layers" / "make_input.py"))


def test_each_layer_has_a_sum_of_its_own(tmp_path):
    """In the order of their names."""
    stack, names = layers.activations()
    np.save(tmp_path / "labels.npy", names)
    over = {"product": "A.T @ A", "keep": "sum", "shards": 4}
    over["labels"] = str(tmp_path / "labels.npy")
    made = factories.listed(factories.plan(tmp_path, stack, **over))
    assert factories.mpirun(1, made).returncode == 0
    listed = json.loads(made.results.label_names.read_text())
    assert listed == {"labels": sorted(layers.SPREADS), "matrices": [layers.BATCHES] * 3}
    for name, total in zip(listed["labels"], np.load(made.results.statistic("sums")), strict=True):
        tokens = layers.BATCHES * layers.TOKENS
        spread = np.sqrt(np.diagonal(total) / tokens) / np.arange(1, layers.FEATURES + 1)
        np.testing.assert_allclose(spread, layers.SPREADS[name], rtol=0.1)
