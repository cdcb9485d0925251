"""Which jobs a run consists of: the sets that dry runs name."""

import os
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests import packages
from tests.factories import nightly, save
from tests.workspace import Workspace

SHARDS = [f"{i:05}" for i in range(4)]
SUM_UP = {"ledger", "reduce", "report"}


def each(rule: str) -> set[str]:
    """The jobs of a rule for every shard."""
    return {f"{rule} {shard}" for shard in SHARDS}


def with_stack(folder: Path) -> Workspace:
    """A fresh workspace with a folder of eight matrices.

    They are links, as a copy of a file is another file to a run: in a clone these lead to the same.
    """
    workspace = Workspace.create(folder / "a clone")
    (workspace.root / "stack").mkdir()
    for i in range(8):
        path = save(folder / "stack" / f"{i}.npy", np.full((3, 3), float(i)))
        (workspace.root / "stack" / path.name).symlink_to(path)
    return workspace


def change(path: Path) -> None:
    """Put another matrix in the place of one, with a time stamp after everything that has run."""
    path.unlink()
    np.save(path, np.full((3, 3), 9.0))
    os.utime(path)


OWN = {"input": "stack", "shards": 4}
POOL = OWN | {"dispatch": "pool"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace that has run to its end on a folder of eight matrices."""
    workspace = with_stack(tmp_path_factory.mktemp("dag"))
    workspace.configure(**OWN)
    workspace.succeed()
    return workspace


@pytest.fixture
def workspace(finished: Workspace, tmp_path: Path) -> Workspace:
    """A copy of the finished workspace, to be changed."""
    return finished.clone(tmp_path / "a clone")


@pytest.fixture(scope="module")
def pooled(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The same under `dispatch: pool`."""
    workspace = with_stack(tmp_path_factory.mktemp("pool"))
    workspace.configure(**POOL)
    workspace.succeed()
    return workspace


@pytest.fixture
def pool(pooled: Workspace, tmp_path: Path) -> Workspace:
    """A copy of it, to be changed."""
    return pooled.clone(tmp_path / "another clone")


def test_a_fresh_dry_run_names_every_job_and_writes_nothing(tmp_path: Path) -> None:
    """A first look shows the whole plan and leaves no file, by either Snakefile."""
    workspace = Workspace.create(tmp_path / "w")
    workspace.configure(shards=4)
    expected = {"plan", "synthesize"} | each("shard") | each("multiply") | SUM_UP
    assert workspace.dry_run() == expected
    assert workspace.dry_run("--snakefile", "workflow/Snakefile") == expected
    assert not (workspace.root / "results").exists()
    assert not list(workspace.root.glob(".snakemake/shardwise/planned-*"))


def test_what_is_removed_by_hand_is_made_again(workspace: Workspace) -> None:
    """A page alone, as where results are older than pages; of shards those, then the sum.

    Who asks for no more gets no page.
    """
    for name in ("report.html", "metrics.prom"):
        workspace.file(name).unlink()
        assert workspace.dry_run() == {"report"}
    workspace.file("products/00002.npy").unlink()
    workspace.file("products/00003.json").unlink()
    lost = {"multiply 00002", "multiply 00003"}
    assert workspace.dry_run() == lost | SUM_UP
    assert workspace.dry_run("--until", "reduce") == lost | {"ledger", "reduce"}


def test_snakemakes_own_report_holds_the_page(workspace, tmp_path, monkeypatch):
    """Page, figures, ledger and receipt with captions and categories.

    It needs no network, and no package that `make run` does not install.
    """
    monkeypatch.setenv("PYTHONPATH", packages.hide_the_others(tmp_path / "hidden"))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    workspace.succeed("--report", "all.zip")
    with zipfile.ZipFile(workspace.root / "all.zip") as made:
        names = {Path(name).name: name for name in made.namelist()}
        text = made.read("all/report.html").decode()
        page = workspace.file("report.html").read_bytes()
        pages = [n for n in made.namelist() if made.read(n) == page]
    assert {"metrics.prom", "ledger.tsv", "summary.json", "report.html"} <= set(names)
    assert len(pages) == 1
    for words in ("The run", "Proof", "Start with the page", "One row per shard, made from"):
        assert words in text


def test_a_changed_input_file_reruns_its_shard_only(workspace: Workspace) -> None:
    """One file of a folder changes one shard."""
    change(workspace.root / "stack" / "5.npy")
    assert workspace.dry_run() == {"plan", "shard 00002", "multiply 00002"} | SUM_UP


def test_a_changed_reduce_only_reduces(workspace: Workspace, pool: Workspace) -> None:
    """Other statistics keep the products; other ranks give the same bits, so nothing runs.

    Another treatment of NaN needs a plan, and no products.
    """
    workspace.configure(**OWN, reduce={"ranks": 3})
    assert workspace.dry_run() == set()
    workspace.configure(**OWN, reduce={"statistics": ["sum", "mean"]})
    assert workspace.dry_run() == {"reduce", "report"}
    pool.configure(**POOL, nonfinite="allow")
    assert pool.dry_run() == {"plan", "reduce", "report"}


def test_a_raised_algorithm_version_reruns_what_it_computes(workspace: Workspace) -> None:
    """New code for the products computes all products again; a comment computes nothing."""
    package = workspace.root / "scripts" / "shardwise" / "__init__.py"
    text = package.read_text()
    package.write_text(text + "\n# a comment\n")
    kernel = package.with_name("multiply") / "session.py"
    kernel.write_text(kernel.read_text() + "\n# a comment\n")
    assert workspace.dry_run() == set()
    package.write_text(re.sub(r'"multiply": (\d+)', r'"multiply": 1\1', text))
    assert workspace.dry_run() == {"plan"} | each("multiply") | SUM_UP


def test_a_changed_config_is_noticed_without_snakemakes_history(workspace: Workspace) -> None:
    """With .snakemake gone, as in another clone, a results folder still follows its config."""
    (workspace.root / ".snakemake").rename(workspace.root / "forgotten")
    workspace.configure(**OWN, product="A.T @ A")
    assert workspace.dry_run() == {"plan"} | each("multiply") | SUM_UP


@pytest.mark.parametrize(
    ("dispatch", "job"), [("array", "multiply"), ("pool", "pool"), ("mpi", "mpi")]
)
def test_one_job_computes_all_shards(tmp_path: Path, dispatch: str, job: str) -> None:
    """The graph does not grow with the shards; the dry run says what there is to compute."""
    workspace = Workspace.create(tmp_path / "w")
    workspace.configure(shards=4, dispatch=dispatch)
    done = workspace.run("--dry-run")
    assert done.jobs == {"plan", "synthesize", job} | SUM_UP
    assert "4 of 4 shards have no products yet; 12.0 MiB to read" in done.output
    assert "of device memory each on a GPU" in done.output
    assert not (workspace.root / "results").exists()


def test_another_dispatch_of_a_finished_run_has_nothing_to_do(workspace, pool):
    """One word changes the way of working, and none of the results."""
    for finished, others in ((workspace, ("array",)), (pool, ("jobs", "mpi"))):
        for dispatch in others:
            finished.configure(**POOL | {"dispatch": dispatch})
            done = finished.succeed("--dry-run")
            assert (done.jobs, "Nothing to be done" in done.output) == (set(), True), done.output


def test_a_changed_input_file_recomputes_its_shard_under_pool(pool: Workspace) -> None:
    """A receipt that is newer than the plan is found stale, also without Snakemake's history."""
    (pool.root / ".snakemake").rename(pool.root / "forgotten")
    change(pool.root / "stack" / "5.npy")
    os.utime(pool.file("products/00002.json"))
    assert pool.dry_run() == {"plan", "pool"} | SUM_UP
    before = pool.file("products/00001.npy").stat().st_mtime_ns
    pool.succeed()
    assert pool.file("products/00001.npy").stat().st_mtime_ns == before
    stack = np.stack([np.load(pool.root / "stack" / f"{i}.npy") for i in range(8)])
    assert np.array_equal(pool.load("sum.npy"), (stack @ stack).sum(axis=0))


def test_what_pool_computed_is_not_computed_again_by_jobs(workspace: Workspace) -> None:
    """Snakemake's memory of earlier jobs does not speak of products that were made since."""
    changed = POOL | {"product": "A.T @ A"}
    workspace.configure(**changed)
    assert workspace.dry_run() == {"plan", "pool"} | SUM_UP
    workspace.succeed()
    workspace.configure(**changed | {"dispatch": "jobs"})
    assert workspace.dry_run() == set()


@pytest.mark.parametrize("words", [["--forceall"], nightly(["-R", "pool"])])
def test_what_is_forced_is_computed_again(pool: Workspace, words: list[str]) -> None:
    """All products, with the same bits; a dry run and --touch only speak of it.

    The receipts are removed only by a run that makes them again, not where the plan is forced.
    """
    before = {path: path.stat().st_mtime_ns for path in pool.file("products").glob("*.json")}
    done = pool.run("--dry-run", *words)
    assert "pool" in done.jobs
    assert "4 of 4 shards are computed again; " in done.output
    pool.succeed("--touch", *words)
    pool.succeed("--forceall", "results/default/plan.tsv")
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert pool.dry_run() == set()
    total = pool.file("sum.npy").read_bytes()
    pool.succeed(*words)
    assert all(path.stat().st_mtime_ns > written for path, written in before.items())
    assert pool.file("sum.npy").read_bytes() == total


def test_a_run_that_ended_before_the_ledger_makes_it(pool: Workspace) -> None:
    """Products that are all there, and newer than ledger and sum, are summed, not made again."""
    os.utime(pool.file("products/00003.json"))
    assert pool.dry_run() == SUM_UP
    pool.succeed()
    assert pool.dry_run() == set()
