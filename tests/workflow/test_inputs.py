"""Under snakemake: input that changes, and names that no run can use, in every dispatch alike."""

import os

import numpy as np
import pytest

from tests.factories import nightly, save, stack
from tests.workspace import Workspace


@pytest.mark.parametrize("dispatch", ["jobs", nightly("pool")])
def test_a_compressed_dataset(workspace: Workspace, dispatch: str) -> None:
    """The shard stage decodes it; an edit of the file computes all again."""
    import h5py

    array = stack((7, 8, 8))
    with h5py.File(workspace.root / "run.h5", "w") as file:
        file.create_dataset("frames", data=array, chunks=(2, 5, 3), compression="gzip")
    workspace.configure(input="run.h5:/frames", shards=3, dispatch=dispatch)
    workspace.succeed()
    np.testing.assert_array_equal(workspace.load("sum.npy"), (array @ array).sum(axis=0))
    with h5py.File(workspace.root / "run.h5", "r+") as file:
        file["frames"][6] = 2
    jobs = {"shard 00000", "shard 00002"} if dispatch == "jobs" else {"pool"}
    assert jobs <= workspace.dry_run()


def test_what_no_run_can_use_is_refused_at_once(workspace: Workspace) -> None:
    """One clear message, exit code 2, no job; docs/errors.md has all that can be wrong."""
    save(workspace.root / "input.npy", stack((4, 4, 4)))
    os.mkfifo(workspace.root / "pipe.py")
    (workspace.root / "loop").symlink_to("loop")
    save(workspace.root / "in" / "0.npy", stack((4, 4)))
    os.rename(workspace.root / "in" / "0.npy", os.fsencode(workspace.root) + b"/in/\xff.npy")
    for over, said in (
        ({"product": "pipe.py:f"}, "product: pipe.py is not a file, but a named pipe"),
        ({"results": "loop/r"}, "results: 'loop/r' cannot be used: Too many levels of"),
        ({"input": "in"}, "in/\\xff.npy: this path is not UTF-8 text; rename it"),
        ({"shard": 4}, "shard: unknown key; did you mean shards?"),
    ):
        workspace.configure(**{"input": "input.npy", **over})
        done = workspace.run(timeout=60)
        assert (done.code, "Traceback" in done.output, done.jobs) == (2, False, set()), done.output
        assert said in done.output
