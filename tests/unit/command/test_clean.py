"""`shardwise clean` removes, on request, only files that the present plan does not name."""

import io
import json
import shutil
from argparse import Namespace
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from shardwise.command import stages
from shardwise.errors import InputError, TryAgain
from shardwise.plan.plan import Plan
from shardwise.records import locks
from shardwise.records.quote import advice
from shardwise.records.store import Store, mark

from tests import factories

STACK = factories.stack((6, 16, 16))


def clean(plan: Plan, remove: bool = True) -> str:
    """What the command says of the plan's folder."""
    with redirect_stdout(io.StringIO()) as told:
        stages.clean(Namespace(configfile=None, results=plan.results.root, yes=remove))
    return told.getvalue()


def files(root: Path) -> set[Path]:
    """Every file of a folder, but for locks."""
    return {p.relative_to(root) for p in root.rglob("*") if p.is_file() and p.suffix != ".lock"}


@pytest.fixture
def two(tmp_path) -> tuple[Plan, set[Path], set[Path]]:
    """A folder with two configs in it: the present plan, its files, and those of the other."""
    left = str(factories.save(tmp_path / "input.npy", STACK))
    old = factories.computed(factories.plan(tmp_path, input=left, shards=3))
    for part in ("00000", "reduce", "copy-00001"):
        Store(old).fail(part, TryAgain("no room"))
    mark(old.results.summed(old.key))
    before = files(old.results.root)
    new = factories.computed(factories.plan(tmp_path, input=left, shards=2, product="A.T @ A"))
    Store(new).fail("reduce", TryAgain("no room"))
    mark(new.results.summed(new.key))
    plan = {*map(Path, (".shardwise", "plan.json", "plan.tsv", "sources.tsv", f"done/{old.key}"))}
    there = files(new.results.root)
    return new, there - before | plan, there & before - plan


def test_other_configs_are_listed_and_removed(two):
    """Products, copies and failures; those of the present plan stay, and the old sum's mark."""
    plan, own, other = two
    root = plan.results.root
    assert advice(plan).startswith(f"{len(other)} files of other configs or inputs take ")
    *listed, total, _ = clean(plan, remove=False).split("\n")
    assert f"{len(other)} files, " in total
    assert {Path(line.split()[-1]) for line in listed} == other
    assert files(root) == own | other
    clean(plan)
    assert files(root) == own
    assert Store(plan).missing() == []
    odd = plan.results.products / "00000-0123456789ab.npy"
    for nbytes, told in (1228, False), (1229, True):  # a tenth of 6 KiB of copies, 6 of products
        odd.write_bytes(bytes(nbytes))
        assert bool(advice(plan)) == told
    odd.with_name("00000-0123456789ac.npy").hardlink_to(odd)  # neither name frees any byte
    assert advice(plan) == ""


@pytest.mark.parametrize("harm", [
    lambda npy: factories.flip(npy.with_suffix(".json"), -2),
    lambda npy: npy.write_bytes(npy.read_bytes()[:-8]),
    lambda npy: npy.write_bytes(b"x" + npy.read_bytes()[1:]),
    lambda npy: npy.symlink_to(npy.rename(npy.parents[2] / "mine.npy")),
    lambda npy: shutil.copy(next(npy.parent.glob("00002-*.json")), npy.with_suffix(".json")),
])  # fmt: skip
@pytest.mark.parametrize("folder", ["products", "shards"])
def test_what_no_run_is_known_to_have_written_stays(two, harm, folder):
    """A product or copy that does not fit a receipt of ours is named, and left."""
    plan, _, other = two
    root = plan.results.root
    (name,) = (p for p in other if p.match(f"{folder}/00001-*.npy"))
    harm(root / name)
    told = clean(plan)
    (line,) = (line for line in told.splitlines() if "no run is known to have written" in line)
    assert str(name) in line
    assert {p for p in files(root) if p in other} <= {name, name.with_suffix(".json")}
    assert (root / name).exists()


def test_files_of_the_users_stay(two):
    """Files whose name, place or, for failures, content is not a run's stay."""
    plan, _, _ = two
    names = ("products/notes.npy", "products/00001-abc.npy", "shards/1-x.json", "failed/mine.json",
             "done/mine", f"failed/00000-{'0' * 12}.json")  # fmt: skip
    paths = [plan.results.root / name for name in names]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    assert set(paths) & set(Store(plan).others()) == {paths[-1]}
    clean(plan)
    assert {path.read_text() for path in paths} == {"mine"}


def test_it_does_not_clean_beside_a_run_or_elsewhere(two):
    """A folder in which a run or a stage works, and one that no run made, stay as they are."""
    plan, own, other = two
    with locks.hold_job_lock(plan.results):
        job = locks.hold_job_lock(plan.results)  # of another job, which outlives the first
    for lock in (locks.take_lock(plan.results.running, ""), job):
        with lock, pytest.raises(TryAgain, match="is working"):
            clean(plan)
    plan.results.marker.unlink()
    with pytest.raises(InputError, match="no run made this folder"):
        clean(plan)
    assert files(plan.results.root) | {Path(".shardwise")} == own | other


def test_what_another_config_needs_is_no_rubbish(two, tmp_path, monkeypatch):
    """If clean is given a config, it must be the one that was last run in the folder."""
    plan, own, other = two
    keys = {"input": "input.npy", "results": str(plan.results.root)}
    (tmp_path / "config.yaml").write_text(json.dumps(keys))
    (tmp_path / "old.yaml").write_text("shards: 3\n")
    monkeypatch.chdir(tmp_path)
    options = Namespace(configfile=[Path("old.yaml")], results=None, yes=True)
    with pytest.raises(InputError, match="with another config"):
        stages.clean(options)
    assert files(plan.results.root) == own | other
    options.results = plan.results.root
    stages.clean(options)
    assert files(plan.results.root) == own
