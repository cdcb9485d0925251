"""The offset of a covariance: what the plan takes it from, and what changes with it."""

import numpy as np
from shardwise.plan import covariance

from tests import factories
from tests.factories import noise

OVER = {"product": "A.T @ A", "covariance": True, "shards": 2}


def test_the_offset_stays_when_the_stack_grows(tmp_path, monkeypatch):
    """The offset is the mean of the first rows, so the earlier shards are not computed again."""
    monkeypatch.setattr(covariance, "FIRST_BYTES", 8 * 7 * 3)
    left = noise((6, 4, 3))
    before = factories.plan(tmp_path, left, **OVER)
    assert before.offset == left.reshape(-1, 3)[:7].mean(axis=0).tobytes()
    grown = np.concatenate([left, noise((3, 4, 3), seed=1)])
    assert factories.plan(tmp_path, grown, **OVER | {"shards": 3}).offset == before.offset


def test_rows_of_weight_0_make_no_offset(tmp_path, monkeypatch):
    """Dead frames may hold anything, so the offset comes from rows that count."""
    monkeypatch.setattr(covariance, "FIRST_BYTES", 8 * 10 * 3)
    left, weights = noise((6, 4, 3)), np.array([0, 1, 0, 1, 1, 1.0])
    left[weights == 0] = 1e20
    over = OVER | {"weights": str(factories.save(tmp_path / "w.npy", weights))}
    made = factories.plan(tmp_path, left, **over)
    rows = left.reshape(-1, 3)[4:14]
    expected = rows[(rows < 1e19).all(axis=1)].mean(axis=0)
    np.testing.assert_allclose(np.frombuffer(made.offset), expected)


def test_without_a_finite_row_nothing_is_subtracted(tmp_path):
    """The tasks say which matrix holds NaN; NumPy would warn of a mean of nothing."""
    made = factories.plan(tmp_path, np.full((2, 4, 3), np.nan), **OVER)
    assert made.offset == bytes(3 * 8)


def test_what_is_subtracted_is_part_of_the_key(tmp_path):
    """Another offset makes other products; the divisor affects only the reduce."""
    own = OVER | {"input": str(factories.save(tmp_path / "a.npy", noise((6, 4, 3))))}
    plans = [factories.plan(tmp_path, **own, **x) for x in ({}, {"ddof": 0}, {"offset": "none"})]
    names = [[row.name for row in made.shards.values()] for made in plans]
    assert names[0] == names[1]
    assert not set(names[0]) & set(names[2])
    assert [len(made.facts.notes) for made in plans] == [0, 0, 1]
