"""The main job under profiles/local: every kind of input, hostile names, trials, many shards."""

import contextlib
import os
import re
import subprocess
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import zarr
from shardwise.plan import plan as plan_file

from tests import factories, objects
from tests.workspace import Workspace


def test_an_object_and_nothing_of_its_credentials(workspace):
    """A stack in an object store: a right sum, a refusal by the server, no secret in a file."""
    numbers = factories.stack((9, 4, 4), "float64")
    with objects.serving() as store:
        workspace.env = os.environ | store.env
        own = {"input": store.put("a.npy", numbers), "shards": 2, "materialize": "auto"}
        workspace.configure(**own, dispatch="pool")
        done = workspace.succeed()
        assert "auto copies each shard first: s3://bucket/a.npy is in an object" in done.output
        assert np.array_equal(workspace.load("sum.npy"), (numbers @ numbers).sum(axis=0))
        store.put("a.npy", numbers + 1)
        store.faults += [None, *[objects.status("403 Forbidden")] * 99]
        refused = workspace.run()
    assert "s3://bucket/a.npy: the server refuses to read it (403" in refused.output
    files = [path for path in workspace.root.rglob("*") if path.is_file()]
    assert not [path for path in files if objects.SECRET.encode() in path.read_bytes()]
    assert objects.SECRET not in done.output + refused.output


def test_what_this_machine_cannot_hold_is_refused(workspace):
    """Two rows that are larger than memory, in a sparse file: an error with figures, no retry."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    np.lib.format.open_memmap(workspace.root / "a.npy", "w+", float, (1, 2, total // 8))
    workspace.configure(input="a.npy", product="A @ A.T", shards=1, materialize=False,
                        backend="numpy")  # fmt: skip
    done = workspace.run("--retries", "2")
    assert done.code == 1, done.output
    found = r"failed: multiply 00000: input: A @ A.T of \(2, \d+\) float64 needs .* GiB of memory"
    assert re.search(found, done.output)
    assert workspace.file("logs/multiply/00000-*.log").read_text().count("needs") == 1
    (log,) = (workspace.root / ".snakemake" / "log").iterdir()
    assert "rule multiply:" in log.read_text()
    assert "Trying to restart" not in log.read_text()


def test_a_sheet_of_files_of_any_format_and_number(workspace: Workspace) -> None:
    """The sum is NumPy's; the dry run shows the files; a new file costs just its own shards."""
    array, root = factories.stack((11, 8, 8)), workspace.root
    np.save(root / "a.npy", array[0])
    with h5py.File(root / "b.h5", "w") as file:
        file.create_dataset("frames", data=array[1:6], chunks=(2, 5, 3), compression="gzip")
    zarr.create_array(root / "c.zarr", data=array[6:8], chunks=(2, 8, 8))
    np.save(root / "d.npy", array[8:])
    own = {"input": "s.tsv", "shards": "auto", "shard_bytes": 2 * array[0].nbytes}
    for names, count, jobs in (("a.npy b.h5:/frames c.zarr", 8, 4), ("d.npy", 11, 2)):
        with open(root / "s.tsv", "a") as sheet:
            sheet.write("\n".join(["path"] * (count == 8) + names.split()) + "\n")
        workspace.configure(**own)
        dry = workspace.run("-n")
        assert re.search(f" arrays in this order, a.npy to .*, hold {count} matrices", dry.output)
        assert len([job for job in dry.jobs if job.startswith("multiply ")]) == jobs
        if count == 8:
            workspace.configure(**own, dispatch="pool")
            workspace.succeed()
            expected = (array[:count] @ array[:count]).sum(axis=0)
            np.testing.assert_array_equal(workspace.load("sum.npy"), expected)


HOSTILE = "a b'c\"$(touch pwned);`touch pwned`&"


def test_hostile_names_are_never_executed(workspace: Workspace) -> None:
    """Spaces, quotes and $() are just names; a printed repair works when pasted into a shell."""
    stack = factories.stack((4, 4, 4), "float64")
    # Variables of an MPI rank or a Slurm step, left in the shell, must not reach the jobs.
    left = {"PMI_RANK": "1", "PMI_SIZE": "3", "SLURM_STEP_NUM_TASKS": "4", "PMIX_RANK": "2"}
    workspace.env = os.environ | left
    np.save(workspace.root / f"{HOSTILE}.npy", stack)
    own = {"input": f"{HOSTILE}.npy", "results": f"out {HOSTILE}", "shards": 2}
    workspace.configure(**own)
    results = workspace.root / f"out {HOSTILE}"
    done = workspace.succeed()
    assert np.array_equal(np.load(results / "sum.npy"), (stack @ stack).sum(axis=0))
    (product,) = results.glob("products/00001-*.npy")
    right = product.read_bytes()
    factories.flip(product)
    (results / "sum.npy").unlink()
    done = workspace.run()
    assert done.code == 1
    command = re.search(r"compute it again: (rm .*), then start the run again", done.output)
    assert command, done.output
    subprocess.run(["bash", "-c", command[1]], cwd=workspace.root, check=True)
    workspace.succeed()
    assert product.read_bytes() == right
    assert not list(workspace.root.rglob("pwned"))


def test_a_trial_computes_a_part_of_the_run_after_it(workspace: Workspace) -> None:
    """A quote writes nothing; a trial's products, and the files before them, are made once."""
    quote = partial(factories.run, "plan", "--configfile", "mine.yaml", cwd=workspace.root)
    workspace.configure(shards=7, backend="numpy", materialize=False, dispatch="pool")
    assert "7 of 7 shards to compute" in quote("--quote").stdout
    assert not workspace.file("").exists()
    tried = quote("--trial", "--devices", "2")
    said = r"(?s)5 of 7 shards to compute.*time .* with 2 devices \(.* to .*\)"
    assert (tried.returncode, bool(re.search(said, tried.stdout))) == (0, True), tried.stderr
    made = {path: path.read_bytes() for path in workspace.file("").rglob("*.json")}
    assert len(made) == 4  # the plan, the stack and two products
    workspace.succeed()
    assert {path: path.read_bytes() for path in made} == made
    assert "nothing is left to do" in quote("--trial").stdout
    next(workspace.file("products").glob("*.json")).unlink()
    refused = quote("--trial")
    assert refused.returncode == 2
    assert "lacks 1 shard, but a trial computes 2 to predict the others" in refused.stderr
    workspace.configure(shards=6, backend="numpy")
    assert "holds the finished results of another config" in quote("--trial").stderr


def test_labels_and_covariance_are_those_of_numpy(workspace: Workspace) -> None:
    """A sum for each digit; then the covariance of all rows, weighted."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    stack, weights = digits.images, np.arange(len(digits.images)) % 3
    arrays = {"digits": stack, "labels": digits.target, "weights": weights}
    for name, array in arrays.items():
        np.save(workspace.root / f"{name}.npy", array)
    given = {"input": "digits.npy", "product": "A.T @ A", "keep": "sum", "shards": 5}
    workspace.configure(**given, labels="labels.npy", dispatch="pool")
    workspace.succeed()
    products = stack.swapaxes(1, 2) @ stack
    sums = [products[digits.target == digit].sum(axis=0) for digit in range(10)]
    assert np.array_equal(workspace.load("sums.npy"), sums)
    workspace.configure(**given, covariance=True, weights="weights.npy", dispatch="pool")
    workspace.succeed()
    expected = np.cov(stack.reshape(-1, 8), rowvar=False, aweights=np.repeat(weights, 8))
    np.testing.assert_allclose(workspace.load("covariance.npy"), expected, rtol=1e-11, atol=1e-11)


def test_more_than_1000_shards_lie_in_folders_by_the_thousand(workspace: Workspace) -> None:
    """A run computes just the missing ones; the sum is right, and nothing is left over."""
    matrix = np.array([[1.0, 2.0], [3.0, 5.0]])
    np.save(workspace.root / "stack.npy", np.broadcast_to(matrix, (1001, 2, 2)))
    workspace.configure(input="stack.npy", shards=1001, dispatch="pool", materialize=False)
    workspace.succeed("--until", "plan")
    with contextlib.chdir(workspace.root):
        made = factories.repeated(plan_file.load(Path("results/default/plan.tsv")))
    for shard in ("000/0000007", "001/0001000"):
        for suffix in ("json", "npy"):
            workspace.file(f"products/{shard}-*.{suffix}").unlink()
    done = workspace.succeed()
    assert "shardwise: 2 of 1001 shards have no products yet" in done.output
    assert np.array_equal(workspace.load("sum.npy"), 1001 * (matrix @ matrix))
    lie = {path.name: len([*path.iterdir()]) for path in workspace.file("products").iterdir()}
    assert lie == {"000": 2000, "001": 2}
    assert workspace.file(f"products/001/{made.shards['0001000'].name}.json").exists()
    assert not [*workspace.file("logs/multiply/001").iterdir()]
    assert not factories.leftovers(workspace.file("."))
