"""The main job under profiles/local: right sums, bad nights, bad input, hostile names."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr
from sklearn.datasets import load_digits

from tests import factories, fake_devices, objects, processes
from tests.factories import nightly
from tests.processes import until
from tests.uses import one_at_a_time
from tests.workspace import Workspace


def whole_numbers(count: int, rows: int = 4, columns: int = 4) -> np.ndarray:
    """Small whole matrices: every sum over their products is exact."""
    shape = (count, rows, columns)
    return np.random.default_rng(3).integers(-9, 9, shape).astype(np.float64)


@pytest.mark.parametrize(
    ("dispatch", "shards", "ranks"),
    [("jobs", 3, 3), ("pool", 7, 2), ("mpi", 7, 1), nightly("jobs", 16, 1)],
)
def test_digits_have_the_bits_of_a_plain_sum(workspace, dispatch, shards, ranks):
    """Handwritten digits: any dispatch, shards and ranks give NumPy's exact sum.

    Under `array` tests/clusters shows the same, with a scheduler.
    """
    digits = load_digits().images
    np.save(workspace.root / "digits.npy", digits)
    own = {"input": "digits.npy", "shards": shards, "materialize": shards < 16}
    workspace.configure(**own, dispatch=dispatch, reduce={"ranks": ranks})
    workspace.succeed()
    assert workspace.load("sum.npy").tobytes() == (digits @ digits).sum(axis=0).tobytes()
    assert workspace.file("shards").exists() == (shards < 16)


@pytest.mark.parametrize("dispatch", ["jobs", nightly("pool")])
def test_an_object_and_nothing_of_its_credentials(workspace, dispatch):
    """A stack in a store: the right sum, what the server refuses, and the secret in no file."""
    numbers = whole_numbers(9)
    with objects.serving() as store:
        workspace.env = os.environ | store.env
        own = {"input": store.put("a.npy", numbers), "shards": 2, "materialize": "auto"}
        workspace.configure(**own, dispatch=dispatch)
        done = workspace.succeed()
        assert "auto copies each shard first: s3://bucket/a.npy is an object" in done.output
        assert np.array_equal(workspace.load("sum.npy"), (numbers @ numbers).sum(axis=0))
        store.put("a.npy", numbers + 1)
        store.faults += [None, *[objects.status("403 Forbidden")] * 99]
        refused = workspace.run()
    assert "s3://bucket/a.npy: the server refuses to read it (403" in refused.output
    files = [path for path in workspace.root.rglob("*") if path.is_file()]
    assert not [path for path in files if objects.SECRET.encode() in path.read_bytes()]
    assert objects.SECRET not in done.output + refused.output


def test_what_this_machine_cannot_hold_is_refused(workspace):
    """Two rows that are longer than memory, in a file of holes: figures, and no second try."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    np.lib.format.open_memmap(workspace.root / "a.npy", "w+", float, (1, 2, total // 8))
    workspace.configure(input="a.npy", product="A @ A.T", shards=1, materialize=False,
                        backend="numpy")  # fmt: skip
    done = workspace.run("--retries", "2")
    assert done.code == 1, done.output
    found = r"failed: multiply 00000: input: A @ A.T of \(2, \d+\) float64 needs .* GiB of memory"
    assert re.search(found, done.output)
    assert workspace.file("logs/multiply/00000-*.log").read_text().count("needs") == 1


@pytest.mark.parametrize(("keep", "materialize"), [nightly("products", True), ("sum", False)])
def test_a_product_of_two_stacks(workspace: Workspace, keep: str, materialize: bool) -> None:
    """A @ B with sum and mean, whatever is kept and whether or not shards are copied."""
    left, right = whole_numbers(9, 3, 5), whole_numbers(9, 5, 2)
    np.save(workspace.root / "a.npy", np.asfortranarray(left))
    np.save(workspace.root / "b.npy", right.astype(">f8"))
    workspace.configure(
        input="a.npy",
        right="b.npy",
        product="A @ B",
        keep=keep,
        materialize=materialize,
        shards=2,
        reduce={"statistics": ["sum", "mean"]},
    )
    workspace.succeed()
    assert np.array_equal(workspace.load("sum.npy"), (left @ right).sum(axis=0))
    assert np.array_equal(workspace.load("mean.npy"), (left @ right).sum(axis=0) / 9)
    assert workspace.file("shards").exists() == materialize
    rows = workspace.file("plan.tsv").read_text().splitlines()
    planned = int(rows[1].split("\t")[rows[0].split("\t").index("memory")])
    told = re.search(r"--mem-mb (\d+)\n", workspace.file("logs/multiply/00000-*.log").read_text())
    assert told, "the job is not told the memory that it was granted"
    assert int(told[1]) == -(-planned // 2**20)


@pytest.mark.parametrize("dispatch", ["jobs", nightly("pool")])
def test_a_failed_shard_costs_that_shard(workspace: Workspace, dispatch: str) -> None:
    """The others finish; the last words say what failed, why, and how to go on; that heals."""
    stack = whole_numbers(6)
    folder = workspace.root / "stack"
    folder.mkdir()
    for i, matrix in enumerate(stack):
        np.save(folder / f"{i}.npy", matrix if i != 3 else np.full((4, 4), np.inf))
    workspace.configure(input="stack", shards=3, dispatch=dispatch)
    done = workspace.run("--retries", "2")
    assert done.code == 1
    receipts = {path.name[:5] for path in workspace.file("products").glob("*.json")}
    assert receipts == {"00000", "00002"}
    words = done.output[done.output.index("shardwise: not finished: 2 of 3 shards") :]
    assert "failed: multiply 00001: input: matrix 3 holds NaN or Inf" in words
    assert re.search(r"\(log: results/default/logs/multiply/00001-[0-9a-f]{12}.log\)", words)
    assert f"cd {workspace.root} && " in words
    starts = workspace.file("logs/multiply/00001-*.starts").read_text()
    assert starts.count("\n") == 1, "bad input was tried again"
    assert "The page on it: results/default/report.html" in words
    page = workspace.file("report.html").stat().st_mtime_ns

    np.save(folder / "3.npy", stack[3])
    assert workspace.file("failed/00001-*.json").exists()
    before = workspace.file("products/00000-*.npy").stat().st_mtime_ns
    workspace.succeed()
    assert workspace.file("report.html").stat().st_mtime_ns > page
    assert workspace.file("products/00000-*.npy").stat().st_mtime_ns == before
    assert np.array_equal(workspace.load("sum.npy"), (stack @ stack).sum(axis=0))


@pytest.mark.parametrize("dispatch", ["jobs", nightly("pool")])
def test_a_compressed_dataset(workspace: Workspace, dispatch: str) -> None:
    """The shard stage decodes it; an edit of the file computes all again."""
    array = factories.stack((7, 8, 8))
    with h5py.File(workspace.root / "run.h5", "w") as file:
        file.create_dataset("frames", data=array, chunks=(2, 5, 3), compression="gzip")
    workspace.configure(input="run.h5:/frames", shards=3, dispatch=dispatch)
    workspace.succeed()
    np.testing.assert_array_equal(workspace.load("sum.npy"), (array @ array).sum(axis=0))
    with h5py.File(workspace.root / "run.h5", "r+") as file:
        file["frames"][6] = 2
    jobs = {"shard 00000", "shard 00002"} if dispatch == "jobs" else {"pool"}
    assert jobs <= workspace.dry_run()


def test_a_sheet_of_files_of_any_format_and_number(workspace: Workspace) -> None:
    """NumPy's sum of all matrices; the dry run shows what they are; a new file costs its shards."""
    array, root = factories.stack((11, 8, 8)), workspace.root
    np.save(root / "a.npy", array[0])
    with h5py.File(root / "b.h5", "w") as file:
        file.create_dataset("frames", data=array[1:6], chunks=(2, 5, 3), compression="gzip")
    np.save(root / "c.npy", array[6:8])
    zarr.create_array(root / "d.zarr", data=array[8:], chunks=(2, 8, 8))
    rows = ["path", "a.npy", "b.h5:/frames", "c.npy", "d.zarr"]
    for lines, count, jobs in ((4, 8, 4), (5, 11, 2)):
        (root / "s.tsv").write_text("\n".join(rows[:lines]))
        workspace.configure(input="s.tsv", shards="auto", shard_bytes=2 * array[0].nbytes)
        dry = workspace.run("-n")
        told = f"{lines - 1} arrays in this order, a.npy to .*, hold {count} matrices"
        assert re.search(told, dry.output)
        assert len([job for job in dry.jobs if job.startswith("multiply ")]) == jobs
        workspace.succeed()
        expected = (array[:count] @ array[:count]).sum(axis=0)
        np.testing.assert_array_equal(workspace.load("sum.npy"), expected)


# Waits for a file `go`, but not as it is tried, before there is a plan.
WAITING = """
import time
from pathlib import Path

def square(xp, block):
    here = Path(__file__).parent
    while (here / {results!r} / "plan.tsv").exists() and not (here / "go").exists():
        time.sleep(0.05)
    return block @ block
"""


def waiting(workspace: Workspace, results: str) -> np.ndarray:
    """Configure a run of two shards that wait for `go`; returns its stack."""
    stack = whole_numbers(4)
    np.save(workspace.root / "stack.npy", stack)
    (workspace.root / "mine.py").write_text(WAITING.format(results=results))
    own = {"input": "stack.npy", "product": "mine.py:square", "shards": 2, "materialize": False}
    workspace.configure(**own, results=results)
    return stack


def at_work(workspace: Workspace) -> bool:
    """Whether a process of this copy of the project lives."""
    scripts = f"{workspace.root}/scripts/"
    return any(scripts in " ".join(processes.words(pid)) for pid in processes.running())


@pytest.mark.fault("snakemake killed by -9 and started again")
def test_a_killed_snakemake_never_costs_a_shard_twice(workspace: Workspace) -> None:
    """Beside living jobs of a killed run a new one does not start; after them it only reduces."""
    stack = waiting(workspace, "results/default")
    run = workspace.start("--cores", "2")
    logs = workspace.file("logs/multiply")
    until(lambda: len(list(logs.glob("*.starts"))) == 2 if logs.exists() else False)
    run.kill()  # snakemake alone: its jobs live on
    run.wait()
    refused = workspace.run()
    assert refused.code == 75
    assert "unlock" not in refused.output
    assert "jobs of an earlier run still work on results/default" in refused.output

    (workspace.root / "go").touch()
    until(lambda: not at_work(workspace))
    assert len(list(workspace.file("products").glob("*.json"))) == 2
    done = workspace.succeed()
    assert done.jobs == {"ledger", "reduce", "report"}
    starts = [path.read_text().count("\n") for path in logs.glob("*.starts")]
    assert starts == [1, 1]
    assert np.array_equal(workspace.load("sum.npy"), (stack @ stack).sum(axis=0))


@pytest.mark.parametrize(
    ("scheduler", "source", "used"),
    [
        ({}, "lease", 2),
        nightly({"JOB_ID": "7", "SGE_ROOT": "/opt/ge", "SGE_HGR_gpu": "1"}, "grid engine", 1),
    ],
)
def test_leases_throttle_the_shards_to_one_a_device(tmp_path, scheduler, source, used):
    """Four jobs at once on two devices: never two shards on one, and both are used.

    In a scheduler's job with one device, as in a shell on a node, all take turns on that one.
    """
    fake = fake_devices.environment(2, tmp_path / "leases")
    workspace = Workspace.create(tmp_path / "w", os.environ | fake | scheduler)
    # Integers have no fast product in NumPy: a shard takes long enough to meet another.
    recipe = {"matrices": 6, "dim": 512, "dtype": "int64"}
    workspace.configure(synthetic=recipe, shards=6, materialize=False)
    workspace.succeed("--cores", "4")
    receipts = [json.loads(p.read_text()) for p in workspace.file("products").glob("*.json")]
    assert {receipt["device"]["source"] for receipt in receipts} == {source}
    uses = one_at_a_time((r["device"]["uuid"], r["started"], r["finished"]) for r in receipts)
    assert (len(uses), sum(uses.values())) == (used, 6)
    logs = [path.read_text() for path in workspace.file("logs/multiply").glob("*.log")]
    assert any("waiting for a free device" in log for log in logs)


HOSTILE = "a b'c\"$(touch pwned);`touch pwned`&"


def test_hostile_names_are_never_executed(workspace: Workspace) -> None:
    """Spaces, quotes and $() are just names; a cure that is printed works when pasted."""
    stack = whole_numbers(4)
    # What a rank, or a user of squeue, has left in the shell is not for the jobs.
    left = {"PMI_RANK": "1", "PMI_SIZE": "3", "SLURM_STEP_NUM_TASKS": "4", "PMIX_RANK": "2"}
    workspace.env = os.environ | left
    np.save(workspace.root / f"{HOSTILE}.npy", stack)
    workspace.configure(input=f"{HOSTILE}.npy", results=f"out {HOSTILE}", shards=2)
    results = workspace.root / f"out {HOSTILE}"
    done = workspace.succeed()
    assert np.array_equal(np.load(results / "sum.npy"), (stack @ stack).sum(axis=0))
    (product,) = results.glob("products/00001-*.npy")
    right = product.read_bytes()
    factories.flip(product)
    (results / "sum.npy").unlink()
    done = workspace.run()
    assert done.code == 1
    command = re.search(r"compute it again: (rm .*), then snakemake as before", done.output)
    assert command, done.output
    subprocess.run(["bash", "-c", command[1]], cwd=workspace.root, check=True)
    workspace.succeed()
    assert product.read_bytes() == right
    assert not list(workspace.root.rglob("pwned"))


@pytest.mark.fault("two runs at once")
def test_two_runs_never_share_a_results_folder(workspace: Workspace, tmp_path: Path) -> None:
    """A second run on the same results, from this clone or another, is told and starts nothing."""
    other = Workspace.create(tmp_path / "other")
    for clone in (workspace, other):
        waiting(clone, str(tmp_path / "shared"))
    (other.root / "go").touch()  # it tries the product before it is refused
    run = workspace.start()
    until((tmp_path / "shared" / "plan.json").exists)
    for second in (workspace, other):
        refused = second.run("--quiet", "all")
        assert refused.code == 75
        assert "another snakemake works on" in refused.output
        assert "unlock" not in refused.output
    (workspace.root / "go").touch()
    assert run.wait(timeout=120) == 0
    starts = (tmp_path / "shared" / "logs" / "multiply").glob("*.starts")
    assert [path.read_text().count("\n") for path in starts] == [1, 1]


@pytest.mark.parametrize("dispatch", ["pool", nightly("jobs")])
def test_a_trial_computes_a_part_of_the_run_after_it(workspace: Workspace, dispatch: str) -> None:
    """A quote writes nothing; the products of a trial, and all before them, are made once."""

    def quote(*words: str) -> "subprocess.CompletedProcess[str]":
        line = [workspace.root / "scripts" / "plan.py", "--configfile", "config.yaml", "mine.yaml"]
        return subprocess.run(
            [sys.executable, *line, *words], cwd=workspace.root, capture_output=True, text=True,
            check=False,
        )  # fmt: skip

    workspace.configure(shards=7, backend="numpy", materialize=True, dispatch=dispatch)
    assert "7 of 7 shards to compute" in quote("--quote").stdout
    assert not workspace.file("").exists()
    tried = quote("--trial", "--devices", "2")
    assert tried.returncode == 0, tried.stderr
    assert "3 of 7 shards to compute" in tried.stdout
    assert re.search(r"time .* with 2 devices \(.* to .*\); .* hours of CPU in all", tried.stdout)
    made = {path: path.read_bytes() for path in workspace.file("").rglob("*.json")}
    assert len(made) == 10  # the plan, the stack, four copies and four products
    workspace.succeed()
    assert {path: path.read_bytes() for path in made} == made
    assert "nothing is left to do" in quote("--quote").stdout
    refused = quote("--trial")
    assert refused.returncode == 2
    assert "lacks 0 shards, and a trial computes 2 to predict the others" in refused.stderr
