"""The files of results: what goes to the disk behind the work."""

import os

import numpy as np
import pytest
from shardwise.files.npy import DATA_OFFSET
from shardwise.plan.problem import Problem
from shardwise.reduce.checkpoint import CheckpointFolder
from shardwise.reduce.results import ResultFiles


@pytest.fixture
def files(tmp_path):
    """The file of a sum of eight numbers."""
    problem = Problem(3, (2, 4), "A @ B", "float64", right=(4, 4))
    made = ResultFiles(CheckpointFolder(tmp_path, "d"), problem, ["sum"])
    made.prepare()
    return made


def test_stripes_are_flushed_while_later_ones_are_added(files, tmp_path, monkeypatch):
    """A flush covers the stripes before; the last one has `close`."""
    flushed, fsync = [], os.fsync

    def record(descriptor):
        flushed.append(np.frombuffer(os.pread(descriptor, 64, DATA_OFFSET)).tolist())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    files.write({"sum": np.full(4, 1.0)}, 0)
    assert not flushed
    files.write({"sum": np.full(4, 2.0)}, 4)
    files.close()
    assert len(flushed) == 2
    assert flushed[0][:4] == [1.0] * 4
    assert flushed[1] == [1.0] * 4 + [2.0] * 4
    assert (np.load(tmp_path / "sum.npy") == [[1.0] * 4, [2.0] * 4]).all()


def test_a_flush_that_fails_behind_the_work_is_not_forgotten(files, monkeypatch):
    """The system tells of lost bytes once: the next flush of the same file succeeds."""
    failures = [OSError(5, "Input/output error")]

    def fail_once(descriptor):
        if failures:
            raise failures.pop()

    monkeypatch.setattr(os, "fsync", fail_once)
    files.write({"sum": np.zeros(4)}, 0)
    files.write({"sum": np.zeros(4)}, 4)
    with pytest.raises(OSError, match="Input/output error") as caught:
        files.close()
    assert caught.value.filename.endswith("sum.npy")
