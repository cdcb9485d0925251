"""What a run does, whatever has happened to its results: the table to read first.

A scenario begins with a finished run. Something happens to its folder or its config; then a dry run
names these jobs and no others, under any dispatch. Played to its end, it leaves what was there as
it was, the sum of NumPy, and nothing to do. `make test` asks each scenario under one of the four
dispatches in turn, `make nightly` under all. What is damaged is in test_repairs.py, what is refused
in test_refusals.py, histories that nobody thought of in tests/histories.
"""

import os
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests import packages
from tests.factories import nightly, save
from tests.workspace import Workspace

OWN = {"input": "stack", "shards": 4, "results": "out"}
DISPATCHES = ("jobs", "array", "pool", "mpi")
SUM_UP = {"ledger", "reduce", "report"}
ALL = range(4)
Act = Callable[[Workspace, dict], None]


def jobs(dispatch: str, shards: object = (), *rules: str, copied: object = ()) -> set[str]:
    """The jobs that compute some shards, and other ones."""
    if dispatch != "jobs":
        return {*rules, *([dispatch.replace("array", "multiply")] if shards else [])}
    copies = {f"shard {number:05}" for number in copied}
    return {*rules, *copies, *(f"multiply {number:05}" for number in shards)}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace that has run to its end on a folder of eight matrices, a job per shard.

    They are links, as a copy of a file is another file to a run: in a clone these lead to the same.
    """
    folder = tmp_path_factory.mktemp("finished")
    workspace = Workspace.create(folder / "a clone")
    (workspace.root / "stack").mkdir()
    for i in range(8):
        path = save(folder / "stack" / f"{i}.npy", np.full((3, 3), float(i)))
        (workspace.root / "stack" / path.name).symlink_to(path)
    workspace.configure(**OWN)
    workspace.succeed()
    return workspace


# What happens.


def lose(*patterns: str) -> Act:
    """Files and folders of the working folder are removed."""

    def act(workspace: Workspace, config: dict) -> None:
        for path in [path for pattern in patterns for path in workspace.root.glob(pattern)]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return act


def each(*acts: Act) -> Act:
    """One after the other."""

    def act(workspace: Workspace, config: dict) -> None:
        for one in acts:
            one(workspace, config)

    return act


def ask(*words: str, **values: object) -> Act:
    """The config is another; perhaps snakemake runs with some words."""

    def act(workspace: Workspace, config: dict) -> None:
        workspace.configure(**config | values)
        if words:
            workspace.succeed(*words)

    return act


def change_input(workspace: Workspace, config: dict) -> None:
    """Another matrix takes the place of one, under an older time stamp."""
    path = workspace.root / "stack" / "5.npy"
    path.unlink()
    np.save(path, np.full((3, 3), 9.0))
    os.utime(path, (1e9, 1e9))


def change_comment(workspace: Workspace, config: dict) -> None:
    """The code of all stages has another comment."""
    for path in (workspace.root / "scripts").rglob("*.py"):
        path.write_text(path.read_text() + "\n# a comment\n")


def raise_version(workspace: Workspace, config: dict) -> None:
    """New code computes other products."""
    path = workspace.root / "scripts" / "shardwise" / "__init__.py"
    path.write_text(re.sub(r'"multiply": (\d+)', r'"multiply": 1\1', path.read_text()))


def move(workspace: Workspace, config: dict) -> None:
    """The results get another name."""
    (workspace.root / "out").rename(workspace.root / "moved")
    workspace.configure(**config | {"results": "moved"})


def copy(workspace: Workspace, config: dict) -> None:
    """They are copied, so that sums, and the page, are older than what they were made from."""
    shutil.copytree(workspace.root / "out", workspace.root / "copied", copy_function=shutil.copy)
    for at, path in enumerate(sorted((workspace.root / "copied").rglob("*.*"))):
        os.utime(path, (1e9 - at, 1e9 - at))
    workspace.configure(**config | {"results": "copied"})


# The table.

SCENARIOS: dict[str, tuple[Act, object, object, set[str]]] = {
    "input changed": (change_input, [2], [2], {"plan"} | SUM_UP),
    "copies and records lost, code commented":
        (each(lose("out/shards", ".snakemake"), change_comment), (), (), set()),
    "receipt lost": (lose("out/products/00002-*.json"), [2], (), SUM_UP),
    "marks lost": (lose("out/done", "out/logs"), (), (), {"plan"} | SUM_UP),
    "version raised": (raise_version, ALL, (), {"plan"} | SUM_UP),
    "product lost": (lose("out/products/00003-*.npy"), [3], (), SUM_UP),
    "changed and touched": (ask("--touch", product="A.T @ A"), ALL, (), {"plan"} | SUM_UP),
    "cut changed": (ask(shards=2), range(2), range(2), {"plan"} | SUM_UP),
    "products and copies lost": (lose("out/shards", "out/products"), ALL, ALL, SUM_UP),
    "moved": (move, (), (), set()),
    "copied": (copy, (), (), {"report"}),
    "touched, plan forced, other ranks":
        (each(ask("--touch"), ask("--force", "out/plan.tsv"), ask(reduce={"ranks": 3})),
         (), (), set()),
    "summary lost": (lose("out/summary.json"), (), (), {"reduce", "report"}),
    "sum lost": (lose("out/sum.npy"), (), (), {"reduce", "report"}),
    "ledger lost": (lose("out/ledger.tsv"), (), (), {"ledger", "report"}),
    "plan lost": (lose("out/plan.*", "out/sources.tsv"), (), (), {"plan"}),
    "other statistics": (ask(reduce={"statistics": ["sum", "max"]}), (), (), {"reduce", "report"}),
    "figures lost": (lose("out/metrics.prom"), (), (), {"report"}),
    "nothing but another dispatch": (ask(), (), (), set()),
}  # fmt: skip
"""What happens to a finished run; the shards to compute again, those to copy, and other jobs."""

PLAYED = {"receipt lost", "marks lost", "changed and touched", "input changed", "ledger lost"}
"""Those that run to their end, but under `array`, which takes a scheduler."""

TURNS = [
    (name, dispatch) if (number - turn) % len(DISPATCHES) == 0 else nightly(name, dispatch)
    for number, name in enumerate(SCENARIOS)
    for turn, dispatch in enumerate(DISPATCHES)
]


@pytest.mark.parametrize(("name", "dispatch"), TURNS)
def test_a_rerun_makes_what_is_missing(finished, tmp_path, name, dispatch):
    """No more and no less; nothing that is there is written again, and then nothing is to do."""
    act, shards, copied, rules = SCENARIOS[name]
    workspace, config = finished.clone(tmp_path / "a clone"), OWN | {"dispatch": dispatch}
    workspace.configure(**config)
    act(workspace, config)
    assert workspace.dry_run() == jobs(dispatch, shards, *rules, copied=copied)
    if name in PLAYED and dispatch != "array":
        there = [p for p in workspace.root.glob("out/products/*") if int(p.name[:5]) not in shards]
        before = {path: path.stat().st_mtime_ns for path in there}
        workspace.succeed()
        assert {path: path.stat().st_mtime_ns for path in before} == before
        stack = np.stack([np.load(workspace.root / "stack" / f"{i}.npy") for i in range(8)])
        product = stack.swapaxes(1, 2) @ stack if "changed and" in name else stack @ stack
        assert np.array_equal(np.load(workspace.root / "out" / "sum.npy"), product.sum(axis=0))
        assert workspace.dry_run() == set()


# What else is asked of a finished run.


def test_a_config_changed_to_and_fro_computes_nothing_twice(finished, tmp_path):
    """The products of both lie side by side, whichever dispatch; ledger and sum are of the last."""
    workspace = finished.clone(tmp_path / "a clone")
    total, receipts = (workspace.root / "out" / name for name in ("sum.npy", "products"))
    right = total.read_bytes()
    workspace.configure(**OWN, dispatch="pool", product="A.T @ A")
    assert "files of other configs take" in workspace.succeed().output
    assert total.read_bytes() == right  # its matrices are symmetric
    before = {path: path.stat().st_mtime_ns for path in receipts.glob("*.json")}
    assert len(before) == 8
    workspace.configure(**OWN)
    assert workspace.dry_run() == {"plan"} | SUM_UP
    workspace.succeed()
    assert {path: path.stat().st_mtime_ns for path in receipts.glob("*.json")} == before
    assert total.read_bytes() == right
    triggers = ["mtime", "params", "input", "code", "software-env"]  # those of Snakemake itself
    assert workspace.dry_run("--rerun-triggers", *triggers) == workspace.dry_run() == set()


@pytest.mark.parametrize(
    ("dispatch", "words"),
    [("pool", ["--forceall"]), nightly("pool", ["-R", "pool"]),
     nightly("jobs", ["--forceall"]), nightly("jobs", ["-R", "multiply"])],
)  # fmt: skip
def test_what_is_forced_is_computed_again(finished, tmp_path, dispatch, words):
    """All products, with the same bits; a dry run and --touch only speak of it."""
    workspace = finished.clone(tmp_path / "a clone")
    workspace.configure(**OWN, dispatch=dispatch)
    total = workspace.root / "out" / "sum.npy"
    before = {p: p.stat().st_mtime_ns for p in workspace.root.glob("out/products/*.json")}
    assert jobs(dispatch, ALL) <= workspace.dry_run(*words)
    workspace.succeed("--touch", *words)
    touched = {path: path.stat().st_mtime_ns for path in before}
    assert workspace.dry_run() == set()
    right = total.read_bytes()
    workspace.succeed(*words)
    assert all(path.stat().st_mtime_ns > written for path, written in touched.items())
    assert total.read_bytes() == right
    assert workspace.dry_run() == set()


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_a_fresh_dry_run_names_every_job_and_writes_nothing(tmp_path: Path, dispatch: str) -> None:
    """One job for all shards but under jobs; it says what there is to compute."""
    workspace = Workspace.create(tmp_path / "w")
    workspace.configure(shards=4, dispatch=dispatch)
    entry = ["--snakefile", "workflow/Snakefile"] if dispatch == "jobs" else []
    done = workspace.succeed("--dry-run", *entry)
    assert done.jobs == {"plan", "synthesize"} | jobs(dispatch, ALL, copied=ALL) | SUM_UP
    assert "4 of 4 shards have no products yet\n" in done.output
    assert (
        f" {len(done.jobs)} jobs read 36.0 MiB and write 36.5 MiB; memory per task" in done.output
    )
    assert not (workspace.root / "results").exists()
    assert not list(workspace.root.glob(".snakemake/shardwise/planned-*"))


@pytest.mark.parametrize("dispatch", ["jobs", nightly("pool")])
def test_who_asks_for_a_sum_gets_that_of_this_config(finished, tmp_path, dispatch):
    """And no page: by name or by rule, where it is of another, or where products are lost."""
    workspace, own = finished.clone(tmp_path / "a clone"), OWN | {"dispatch": dispatch}
    for words in (["out/sum.npy"], ["--until", "reduce"]):
        workspace.configure(**own, product="A.T @ A")
        wanted = jobs(dispatch, ALL, "plan", "ledger", "reduce")
        assert workspace.dry_run(*words) == wanted
        workspace.configure(**own)
        assert workspace.dry_run(*words) == set()
    lose("out/products/00002-*.json")(workspace, own)
    assert workspace.dry_run("out/sum.npy") == jobs(dispatch, [2], "ledger", "reduce")


def test_snakemakes_own_report_holds_the_page(finished, tmp_path, monkeypatch):
    """Page, figures, ledger and receipt with captions and categories.

    It needs no network, and no package that `make run` does not install.
    """
    workspace = finished.clone(tmp_path / "a clone")
    monkeypatch.setenv("PYTHONPATH", packages.hide_the_others(tmp_path / "hidden"))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    workspace.succeed("--report", "all.zip")
    with zipfile.ZipFile(workspace.root / "all.zip") as made:
        names = {Path(name).name: name for name in made.namelist()}
        text = made.read("all/report.html").decode()
        page = (workspace.root / "out" / "report.html").read_bytes()
        pages = [n for n in made.namelist() if made.read(n) == page]
    assert {"metrics.prom", "ledger.tsv", "summary.json", "report.html"} <= set(names)
    assert len(pages) == 1
    for words in ("The run", "Proof", "Start with the page", "One row per shard, made from"):
        assert words in text
