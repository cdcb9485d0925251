"""The main job under profiles/uge, on a real Grid Engine with pretended GPUs."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.uge.cluster import UgeCluster
from tests.workspace import Workspace

pytestmark = [pytest.mark.uge, pytest.mark.timeout(600)]


class Night:
    """One workspace on the cluster."""

    def __init__(self, uge: UgeCluster, root: Path) -> None:
        self.uge = uge
        self.workspace = Workspace.create(root, uge.env())

    def starts(self) -> Counter[str]:
        """How often each job was submitted, by its name without the name of the run."""
        notes = self.workspace.root.glob(".snakemake/shardwise/uge/*/*.job")
        names = (json.loads(note.read_text())["name"] for note in notes)
        return Counter(name.split("-", 2)[2] for name in names)

    def folder_of(self, count: int) -> np.ndarray:
        """Write ``stack/``, a folder of small whole matrices, and return them as one array."""
        (self.workspace.root / "stack").mkdir()
        stack = np.random.default_rng(1).integers(-9, 9, (count, 5, 5)).astype(np.float64)
        for i, matrix in enumerate(stack):
            np.save(self.workspace.root / "stack" / f"{i:03}.npy", matrix)
        return stack


@pytest.fixture
def night(uge: UgeCluster, tmp_path: Path) -> Iterator[Night]:
    """A fresh workspace on an idle cluster."""
    yield Night(uge, tmp_path / "with a space")
    uge.cancel_all()


def test_every_shard_is_a_job_and_so_is_the_reduce(night: Night) -> None:
    """Four shards and the reduce in a parallel environment: one start a job, and the sum."""
    stack = night.folder_of(8)
    night.workspace.configure(input="stack", shards=4, materialize=False)
    done = night.workspace.run(profile="uge")
    assert done.code == 0, done.output
    shards = [f"multiply-{i:05}" for i in range(4)]
    assert night.starts() == Counter([*shards, "reduce"])
    assert np.array_equal(night.workspace.load("sum.npy"), (stack @ stack).sum(axis=0))
    assert json.loads(night.workspace.file("summary.json").read_text())["ranks"] == 2


def test_a_parallel_environment_that_is_not_there_is_refused_before_any_job(night: Night) -> None:
    """Not when the shards are done: the run ends with 2, and names the line of the profile."""
    profile = night.workspace.root / "profiles" / "uge" / "config.yaml"
    profile.write_text(profile.read_text().replace('"-pe mpi {ranks}"', '"-pe nope {ranks}"'))
    night.folder_of(2)
    night.workspace.configure(input="stack", shards=2)
    done = night.workspace.run(profile="uge")
    assert done.code == 2, done.output
    assert (
        'environment "nope" does not exist (from uge_parallel: "-pe nope {ranks}")' in done.output
    )
    assert night.starts() == Counter()
    assert not night.workspace.file("products").exists()
