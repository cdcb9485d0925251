"""The covariance of the digits is NumPy's, and its picture can be drawn."""

import runpy
from types import SimpleNamespace

import numpy as np
import pytest
import shardwise
from sklearn.datasets import load_digits

from tests import factories

EXAMPLE = factories.ROOT / "examples" / "covariance"


def test_the_digits_differ_as_numpy_says(tmp_path):
    """The first direction explains 15 % of the variance, whatever the number of shards."""
    picture = SimpleNamespace(**runpy.run_path(EXAMPLE / "picture.py"))
    rows = load_digits().data
    over = {"product": "A.T @ A", "covariance": True, "keep": "sum", "shards": 4}
    made = factories.plan(tmp_path, rows[:, None, :].astype("float32"), **over)
    factories.reduced(factories.listed(made))
    found = shardwise.open(made.results.root).statistics["covariance"]
    np.testing.assert_allclose(found, np.cov(rows, rowvar=False), rtol=1e-6, atol=1e-6)
    _, parts = picture.components(found, 2)
    assert parts == pytest.approx([0.149, 0.136], abs=1e-3)
    picture.draw(made.results.root, tmp_path / "digits.png")
    assert (tmp_path / "digits.png").stat().st_size > 10_000
