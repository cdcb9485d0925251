"""Under snakemake: input that changes, and names that no run can use, in every dispatch alike."""

import os

import numpy as np
import pytest

from tests.factories import nightly, save, stack
from tests.workspace import Workspace

EDITS = """
import os

def f(xp, block):
    if os.path.exists("edit-now"):
        before = os.stat("input.npy")
        with open("input.npy", "r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(bytes(4))
        os.utime("input.npy", ns=(before.st_atime_ns, before.st_mtime_ns))
    return block + 1
"""


@pytest.mark.parametrize("dispatch", ["jobs", *map(nightly, ("pool", "mpi"))])
def test_an_edit_in_mid_read_is_an_error(workspace: Workspace, dispatch: str) -> None:
    """The function edits the input in place while it is read: nothing is committed, no sum."""
    save(workspace.root / "input.npy", stack((6, 8, 8)))
    (workspace.root / "mine.py").write_text(EDITS)
    workspace.configure(
        input="input.npy", product="mine.py:f", shards=1, materialize=False, dispatch=dispatch
    )
    workspace.dry_run()  # the function is tried, and that is kept
    (workspace.root / "edit-now").touch()
    done = workspace.run("--retries", "0")
    assert done.code == 1, done.output
    assert "input.npy has changed while it was read; nothing was written" in done.output
    assert not workspace.file("sum.npy").exists()
    assert not list(workspace.file("products").glob("*.npy"))
    (workspace.root / "edit-now").unlink()
    done = workspace.run()
    assert done.code == 0, done.output
    expected = (np.load(workspace.root / "input.npy") + 1).sum(axis=0)
    np.testing.assert_array_equal(workspace.load("sum.npy"), expected)


@pytest.mark.parametrize("dispatch", ["jobs", nightly("pool")])
def test_a_compressed_dataset(workspace: Workspace, dispatch: str) -> None:
    """The shard stage decodes it; an edit of the file computes all again."""
    import h5py

    array = stack((7, 8, 8))
    with h5py.File(workspace.root / "run.h5", "w") as file:
        file.create_dataset("frames", data=array, chunks=(2, 5, 3), compression="gzip")
    workspace.configure(input="run.h5:/frames", shards=3, dispatch=dispatch)
    done = workspace.run()
    assert done.code == 0, done.output
    np.testing.assert_array_equal(workspace.load("sum.npy"), (array @ array).sum(axis=0))
    with h5py.File(workspace.root / "run.h5", "r+") as file:
        file["frames"][6] = 2
    jobs = {"shard 00000", "shard 00002"} if dispatch == "jobs" else {"pool"}
    assert jobs <= workspace.dry_run()


@pytest.mark.parametrize("dispatch", ["jobs", nightly("pool")])
def test_files_that_change_places_are_computed_again(workspace: Workspace, dispatch: str) -> None:
    """Two files of equal size and time stamp: their shards, and only these."""
    paths = [save(workspace.root / "in" / f"{i}.npy", stack((4, 4), seed=i)) for i in range(4)]
    for path in paths:
        os.utime(path, ns=(10**18, 10**18))
    workspace.configure(input="in", shards=4, dispatch=dispatch, materialize=False)
    assert workspace.run().code == 0
    before = {i: workspace.file(f"products/0000{i}.json").read_bytes() for i in range(4)}
    paths[1].rename(workspace.root / "aside")
    paths[3].rename(paths[1])
    (workspace.root / "aside").rename(paths[3])
    done = workspace.run()
    assert done.code == 0, done.output
    after = {i: workspace.file(f"products/0000{i}.json").read_bytes() for i in range(4)}
    assert [i for i in range(4) if before[i] != after[i]] == [1, 3]
    for i, path in enumerate(paths):
        matrix = np.load(path)
        product = workspace.load(f"products/0000{i}.npy")[0]
        np.testing.assert_array_equal(product, matrix @ matrix)


LYING = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 1000, 1000)}".ljust(117)


def test_what_no_run_can_use_is_refused_at_once(workspace: Workspace) -> None:
    """One clear message, exit code 2, no job; docs/errors.md has all that can be wrong."""
    save(workspace.root / "input.npy", stack((4, 4, 4)))
    header = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + f"{LYING}\n".encode()
    (workspace.root / "lying.npy").write_bytes(header)
    os.mkfifo(workspace.root / "pipe.py")
    (workspace.root / "loop").symlink_to("loop")
    save(workspace.root / "in" / "0.npy", stack((4, 4)))
    os.rename(workspace.root / "in" / "0.npy", os.fsencode(workspace.root) + b"/in/\xff.npy")
    for over, said in (
        ({"product": "pipe.py:f"}, "product: pipe.py is not a file, but a named pipe"),
        ({"results": "loop/r"}, "results: 'loop/r' cannot be used: Too many levels of"),
        ({"results": "r/" * 1500 + "r"}, "choose a shorter one"),
        ({"input": "in"}, "in/\\xff.npy: this path is not UTF-8 text; rename it"),
        ({"input": "lying.npy"}, "its header says shape (1000000, 1000, 1000) of float32"),
        ({"shard": 4}, "shard: unknown key; did you mean shards?"),
        ({"input": "none.npy"}, f"none.npy does not exist; looked for {workspace.root}/none.npy"),
    ):
        workspace.configure(**{"input": "input.npy", **over})
        done = workspace.run(timeout=60)
        assert (done.code, "Traceback" in done.output, done.jobs) == (2, False, set()), done.output
        assert said in done.output
