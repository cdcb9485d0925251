"""A results folder opened in Python: the arrays of the run, and refusals that say what to do."""

import os

import numpy as np
import pytest
import shardwise
from shardwise.errors import InputError, IntegrityError

from tests import factories
from tests.unit.observe.test_audit import finished

STACK = factories.stack((12, 5, 5))


def test_results_are_read_and_not_written(tmp_path, monkeypatch):
    """Names stay text, the sum cannot be changed, and an index out of range is refused."""
    monkeypatch.setenv("SLURMD_NODENAME", "0123")  # as containers are called
    finished(tmp_path, STACK, shards=5)
    run = shardwise.open(tmp_path / "results")
    assert run.ledger.shard.tolist() == ["00000", "00001", "00002", "00003", "00004"]
    assert run.ledger.host.unique().tolist() == ["0123"]
    assert not run.sum.flags.writeable
    for matrix in (-1, 12):
        with pytest.raises(IndexError, match="holds 0 to 11"):
            run.product(matrix)


def test_what_a_run_has_not_kept_is_refused_with_what_to_do(tmp_path):
    """Products if it kept only sums; the sum if it made none, or made one per label."""
    finished(tmp_path, STACK, ("mean",), shards=2, keep="sum")
    run = shardwise.open(tmp_path / "results")
    with pytest.raises(InputError, match="set keep: products"):
        run.product(0)
    for name, told in (("sum", "has no sum, but mean; add it"), ("sums", "no sums, but mean; set")):
        with pytest.raises(InputError, match=told):
            getattr(run, name)
    finished(tmp_path, STACK, labels=str(factories.save(tmp_path / "l.npy", np.arange(12) % 2)))
    run = shardwise.open(tmp_path / "results")
    assert len(run.sums) == 2
    with pytest.raises(InputError, match="has no sum, but sums; a run with labels"):
        assert run.sum


def test_a_run_that_has_not_finished(tmp_path):
    """Products can be read already; the sum, the statistics and the ledger are refused."""
    made = factories.plan(tmp_path, STACK, shards=2)
    run = shardwise.open(tmp_path / "results")
    factories.computed(made)
    np.testing.assert_array_equal(run.product(3), STACK[3] @ STACK[3])
    for name in ("sum", "statistics", "ledger"):
        with pytest.raises(InputError, match="has not finished"):
            getattr(run, name)
    for path in (tmp_path / "none", tmp_path / "input.npy"):
        with pytest.raises(InputError, match=f"no results of a run in {path} "):
            shardwise.open(os.path.relpath(path))


def test_a_run_whose_folder_has_another_config_now(tmp_path):
    """Its sum is not taken for that of the run that was opened."""
    finished(tmp_path, STACK)
    run = shardwise.open(tmp_path / "results")
    finished(tmp_path, input=str(tmp_path / "input.npy"), product="A.T @ A")
    with pytest.raises(InputError, match="another config or input has run here"):
        assert run.sum


def test_a_file_cut_short_is_refused(tmp_path):
    """It is refused before it is opened; only ``verify`` finds a changed bit."""
    plan = finished(tmp_path, STACK, shards=2)
    run = shardwise.open(tmp_path / "results")
    product = "products/00001-*.npy"
    for pattern, get in ("sum.npy", lambda: run.sum), (product, lambda: run.product(9)):
        (path,) = plan.results.root.glob(pattern)
        factories.flip(path, 200)
        assert run.verify().verdict == "damaged"
        path.write_bytes(path.read_bytes()[:-8])
        with pytest.raises(IntegrityError, match=path.name):
            get()
