"""What a run does, whatever happens to it, or has happened to its results: read this first.

A row of `RUNS` is played in three places, on this machine, a real Slurm and a real Grid Engine,
under four dispatches: something happens while shards wait. Then the exit code, the lost shards and
the words must be the row's, and another run does the rest, with the bits of NumPy.

A row of `SCENARIOS` begins with a finished run. Something happens to its folder or its config; then
a dry run names the jobs of the row and no others, under any dispatch. A real run then keeps the
files that were there, gives the sum of NumPy, and leaves nothing to do.

`make test` plays each row in the places that it names for the day, `make nightly` in all. For
damage see test_repairs.py, for refusals test_refusals.py, for histories that nobody thought of
tests/histories.
"""

import contextlib
import re
import runpy
import shlex
import signal
import zipfile
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests import fake_devices
from tests.factories import flip, leftovers, nightly
from tests.night import Night
from tests.places import DISPATCHES, PLACES, case, on
from tests.workflow import stories
from tests.workflow.conftest import OWN
from tests.workflow.stories import Act, Story, ask, each, lose
from tests.workspace import Workspace


@dataclass(frozen=True)
class Run:
    """A story, its places by day, its faults; the exit code, the lost shards, and the words."""

    story: Callable[[Night], Story]
    day: tuple[str, ...] = ()
    faults: tuple[pytest.MarkDecorator, ...] = ()
    places: Sequence[str] = PLACES
    code: int = 0
    lost: Set[str] | None = frozenset()
    says: str = ""
    shards: int = 4
    at_once: int = 6


fault = pytest.mark.fault
KILLED = fault("a worker or task that is killed")
CANCELLED = fault("a job that is cancelled, SIGTERM, Ctrl-C")
SCHEDULERS = tuple(place for place in PLACES if "local" not in place)

RUNS = {
    "a bad night": Run(
        stories.a_bad_night, ("slurm array",), (KILLED, CANCELLED),
        code=1, lost={"00003"}, says=r"multiply 00003: .*matrix 3 holds NaN or Inf",
    ),
    "many faults": Run(
        stories.many_faults, ("local jobs",),
        (fault("a poison shard"), fault("a host out of memory")),
        code=1, lost={"00001"}, says="multiply 00001: ", at_once=3,
    ),
    "interrupted": Run(
        stories.interrupted, ("slurm array",), (CANCELLED,),
        code=130, lost=None, says="To run just what is missing", shards=3,
    ),
    "its terminal closed": Run(
        partial(stories.interrupted, number=signal.SIGHUP), (), (CANCELLED,),
        code=130, lost=None, says="To run just what is missing", shards=3,
    ),
    "killed by -9": Run(
        stories.killed_by_9, ("slurm array",),
        (fault("snakemake killed by -9 and started again"), fault("two runs at once")),
        code=-9, shards=2,
    ),
    "a silent controller": Run(
        stories.a_silent_controller, ("grid_engine jobs",),
        (fault("a scheduler that answers nothing"),),
        # Array tasks that end while Grid Engine is down stay in its queue for minutes.
        tuple(place for place in SCHEDULERS if place != "grid_engine array"), shards=3, at_once=2,
    ),
    "a task that never runs": Run(
        stories.a_task_that_never_runs, ("slurm array",), (),
        ("slurm array", "grid_engine array"), shards=0,
    ),
    "requeued": Run(
        stories.requeued, ("slurm array",), (fault("a job that is requeued"),),
        ("slurm array", "slurm pool", "slurm mpi"), shards=2,
    ),
    "a lost node": Run(
        stories.a_lost_node, ("grid_engine array",), (fault("a node that goes down"),),
        tuple(place for place in SCHEDULERS if "pool" not in place and "mpi" not in place),
    ),
}  # fmt: skip


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("site", "dispatch", "name"),
    [case(place, run.day, name, marks=run.faults)
     for name, run in RUNS.items() for place in PLACES if place in run.places],
    indirect=["site"],
)  # fmt: skip
def test_what_happens_to_a_run_costs_no_more_than_it_must(night, dispatch, name):
    """The exit code, the lost shards and the words are the row's; a rerun is right to the bit."""
    run = RUNS[name]
    count = run.shards or night.cluster.room + 1
    # A task of an array claims one shard ahead: with twice as many shards, each task has work.
    shards = 2 * count if dispatch == "array" else count
    night.gated(shards, dispatch)
    story = run.story(night)
    next(story)
    at_once = min(count - len(night.bad), run.at_once, night.cluster.room)
    at_once = at_once if dispatch in ("jobs", "array") else 1
    until = ("--until", "multiply" if dispatch in ("jobs", "array") else dispatch)
    process = night.start(*until, *(("--jobs", "2") if run.at_once == 2 else ()))
    night.wait_for("shards wait", lambda: len(night.at_gate()) >= at_once)
    with contextlib.suppress(StopIteration):
        story.send(process)
    night.open()
    assert process.wait(300) == run.code, night.output()
    next(story, None)
    whole = set(night.receipts())
    assert run.lost is None or {f"{i:05}" for i in range(shards)} - whole == run.lost
    if run.says:
        assert re.search(run.says, night.output())
    assert "Traceback" not in night.output()
    if run.lost:
        assert f"shardwise: not finished: {len(whole)} of {shards} shards" in night.output()
        assert "The page on this run: results/default/report.html" in night.output()
    night.wait_for("nothing lives", night.idle)
    before = night.receipts()
    night.heal()
    night.finish()
    # Whether a process on another node lives is unknown here: its temporary files stay.
    assert name == "a lost node" or not leftovers(night.workspace.file(""))
    assert {shard: night.receipts()[shard] for shard in before} == before


@pytest.mark.timeout(600)
@pytest.mark.parametrize("what", ["digits", nightly("survey")])
@on("local mpi", "slurm mpi", "grid_engine pool")
def test_a_sum_has_the_bits_of_numpy(night, dispatch, what):
    """Whatever computes it: each shard once, on no more devices than are asked for."""
    from sklearn.datasets import load_digits

    night.stack, own = load_digits().images, {"shards": 5}
    if what == "survey":  # the seismic example; three shots, whose tree adds from left to right
        night.stack = np.full((3, 61, 121), 1500, "float32")
        night.stack[:, 0, :2], night.stack[:, 0, 2:] = [(40, 200), (40, 400), (30, 700)], 0
        function = "examples/seismic/propagator.py"
        night.product = partial(runpy.run_path(str(night.root / function))["shot"], np)
        own = {"shards": 3, "product": f"{function}:shot"}
    np.save(night.root / "stack.npy", night.stack)
    night.own = {"input": "stack.npy", "dispatch": dispatch, "array_limit": 2, **own,
                 "materialize": dispatch == "array", "reduce": {"ranks": 2}}  # fmt: skip
    night.workspace.configure(**night.own)
    local = night.cluster.profile == "local"
    rule = "multiply" if dispatch in ("jobs", "array") else dispatch
    fake = fake_devices.environment(4, night.root.with_name("leases"))
    export = "export " + shlex.join(f"{name}={value}" for name, value in fake.items())
    done = night.run(*(() if local else ("--until", rule, "--precommand", export)))
    assert done.code == 0, done.output
    if not local:
        night.wait_for("the queue is empty", night.idle)
        uses = {(r["node"], r["device"]["uuid"]) for r in night.receipts().values()}
        assert len(uses) <= {"pool": 1, "mpi": 2}.get(dispatch, 5)
        night.finish()
    night.check_sum()
    assert set(night.starts().values()) == {1}
    night.workspace.configure(**night.own | {"dispatch": "jobs"})
    assert night.workspace.dry_run() <= {"report"}, "what one dispatch has done is done for all"


SUM_UP = {"ledger", "reduce", "report"}
ALL = range(4)


def jobs(dispatch: str, shards: object = (), *rules: str, copied: object = ()) -> set[str]:
    """The jobs that compute or copy some shards, and those of other rules."""
    if dispatch != "jobs":
        return {*rules, *([dispatch.replace("array", "multiply")] if shards else [])}
    copies = {f"shard {number:05}" for number in copied}
    return {*rules, *copies, *(f"multiply {number:05}" for number in shards)}


# The table.

SCENARIOS: dict[str, tuple[Act, object, object, set[str]]] = {
    "input changed": (stories.change_input, [2], [2], {"plan"} | SUM_UP),
    "copies and records lost, code commented":
        (each(lose("out/shards", ".snakemake"), stories.change_comment), (), (), set()),
    "plan damaged, one lost":
        (each(lose("out/products/00002-*.json"), lambda own, _: flip(own.root / "out/plan.tsv")),
         [2], (), {"plan"} | SUM_UP),
    "marks lost": (lose("out/done", "out/logs"), (), (), {"plan"} | SUM_UP),
    "version raised": (stories.raise_version, ALL, (), {"plan"} | SUM_UP),
    "product lost": (lose("out/products/00003-*.npy"), [3], (), SUM_UP),
    "changed and touched": (ask("--touch", product="A.T @ A"), ALL, (), {"plan"} | SUM_UP),
    "changed to and fro":
        (each(ask("--until", "reduce", dispatch="pool", product="A.T @ A"), ask()),
         (), (), {"plan"} | SUM_UP),
    "cut changed": (ask(shards=2), range(2), range(2), {"plan"} | SUM_UP),
    "products and copies lost": (lose("out/shards/*.npy", "out/products"), ALL, ALL, SUM_UP),
    "moved": (stories.move, (), (), set()),
    "copied": (stories.copy, (), (), {"report"}),
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

PLAYED = {"changed and touched", "changed to and fro", "input changed", "plan damaged, one lost"}
"""Rows that are also run to the end, except under `array`, which needs a scheduler."""

TURNS = [
    (name, dispatch) if (number - turn) % len(DISPATCHES) == 0 else nightly(name, dispatch)
    for number, name in enumerate(SCENARIOS)
    for turn, dispatch in enumerate(DISPATCHES)
]


@pytest.mark.parametrize(("name", "dispatch"), TURNS)
def test_a_rerun_makes_what_is_missing(finished, tmp_path, name, dispatch):
    """A dry run names exactly the missing jobs; a run rewrites nothing else, and all is done."""
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


@pytest.mark.parametrize(
    ("dispatch", "words"), [("pool", ["--forceall"]), nightly("jobs", ["-R", "multiply"])]
)
def test_what_is_forced_is_computed_again(finished, tmp_path, dispatch, words):
    """All products, with the same bits; a dry run and --touch compute nothing."""
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
    """Except under ``jobs`` one job has all shards; the dry run says what is to be computed."""
    workspace = Workspace.create(tmp_path / "w")
    workspace.configure(shards=4, dispatch=dispatch)
    entry = ["--snakefile", "workflow/Snakefile"] if dispatch == "jobs" else []
    done = workspace.succeed("--dry-run", *entry)
    assert done.jobs == {"plan", "synthesize"} | jobs(dispatch, ALL, copied=ALL) | SUM_UP
    assert "4 of 4 shards have no products yet\n" in done.output
    assert "a run reads 36.0 MiB and writes 36.5 MiB; memory per task" in done.output
    assert not (workspace.root / "results").exists()
    assert not list(workspace.root.glob(".snakemake/shardwise/planned-*"))


@pytest.mark.parametrize("dispatch", ["jobs", nightly("pool")])
def test_who_asks_for_a_sum_gets_that_of_this_config(finished, tmp_path, dispatch):
    """By name or by rule, without the page, if the sum is another config's or products are lost."""
    workspace, own = finished.clone(tmp_path / "a clone"), OWN | {"dispatch": dispatch}
    for words in (["out/sum.npy"], ["--until", "reduce"]):
        workspace.configure(**own, product="A.T @ A")
        assert workspace.dry_run(*words) == jobs(dispatch, ALL, "plan", "ledger", "reduce")
        workspace.configure(**own)
        assert workspace.dry_run(*words) == set()
    lose("out/products/00002-*.json")(workspace, own)
    assert workspace.dry_run("out/sum.npy") == jobs(dispatch, [2], "ledger", "reduce")


def test_snakemakes_own_report_holds_the_page(finished, tmp_path, monkeypatch):
    """It needs no network."""
    workspace = finished.clone(tmp_path / "a clone")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    workspace.succeed("--report", "all.zip")
    with zipfile.ZipFile(workspace.root / "all.zip") as made:
        files = [(Path(name).name, made.read(name)) for name in made.namelist()]
    for name in ("metrics.prom", "ledger.tsv", "summary.json", "report.html"):
        assert (name, (workspace.root / "out" / name).read_bytes()) in files
