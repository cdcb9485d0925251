"""The audit of a results folder: what is whole is called so, and no changed bit is."""

import json
import random
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from shardwise import host
from shardwise.errors import InputError
from shardwise.files.paths import Results
from shardwise.multiply import job
from shardwise.observe import audit
from shardwise.plan import plan as plans
from shardwise.plan.config import NO_PLAN
from shardwise.plan.plan import Shard
from shardwise.records import ledger, receipts
from shardwise.records.store import Store, mark
from shardwise.reduce import job as jobs
from shardwise.units import human_bytes

from tests import factories


def finished(folder: Path, left=None, names=("sum",), right=None, **over):
    """A plan that was computed and summed."""
    from mpi4py import MPI

    made = factories.computed(factories.plan(folder, left, right, **over))
    ledger.write(made)
    jobs.run(MPI.COMM_SELF, made.results.plan, list(names))
    for marker in (made.results.listed(made.key), made.results.summed(made.key)):
        mark(marker)
    return made


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A whole results folder, not to be changed."""
    folder = tmp_path_factory.mktemp("model")
    return finished(folder, factories.stack((12, 16, 16)), ("sum", "std", "max"), shards=4)


@pytest.fixture
def made(model, tmp_path):
    """The results folder of that plan, copied to another place."""
    root = tmp_path / "elsewhere"
    shutil.copytree(model.results.root, root)
    return type(model.results)(root)


def row(results: Results, shard: str) -> Shard:
    """What the plan says of a shard."""
    return plans.load(results.plan).shards[shard]


def state(root: Path) -> dict:
    """Every file of a folder with its bytes and its time stamp."""
    return {p: (p.stat().st_mtime_ns, p.is_file() and p.read_bytes()) for p in root.rglob("*")}


def test_what_is_whole_is_called_whole(made):
    """One line says how many shards, how many bytes, and which results; nothing is written."""
    before = state(made.root)
    found = audit.look(made.root)
    nbytes = sum(path.stat().st_size for path in made.root.rglob("*.npy"))
    assert (found.verdict, found.code, found.nbytes) == ("whole", 0, nbytes)
    text = f"whole: 4 shards, {human_bytes(nbytes)}, sum.npy, std.npy, max.npy proven"
    assert found.line() == f"{made.root}: {text}"
    assert not found.findings
    assert state(made.root) == before


def test_no_changed_bit_is_overlooked(made):
    """One random bit in any file that a run leaves as a result: never whole, and repaired."""
    seed = random.Random(7)
    files = sorted(p for p in made.root.rglob("*") if p.is_file() and p.parent.name != "multiply")
    files = [p for p in files if not {"logs", "done"} & set(p.parts) and p != made.marker]
    assert len(files) == 4 * 4 + 8
    for path in files:
        raw = path.read_bytes()
        for _ in range(4):
            factories.flip(path, seed.randrange(len(raw)), seed.randrange(8))
            found = audit.look(made.root)
            assert found.code == 3, (path, found.line())
            named = [f for f in found.findings if path.stem in (Path(f.path).stem, f.shard)]
            assert named or path.stem in ("plan", "sources"), (path, found.line())
            path.write_bytes(raw)
    assert audit.look(made.root).verdict == "whole"


def test_what_is_damaged_is_named_with_the_command_that_repairs_it(made):
    """Products, a copy, the ledger and a result; then the next run has to make just these."""
    one, two = row(made, "00001").name, row(made, "00002").name
    three = row(made, "00003").input_name
    factories.flip(made.product(one), 5000)
    made.product(two).unlink()
    factories.flip(made.shard(three), 5000)
    made.ledger.write_text("")
    made.statistic("std").unlink()
    root = made.root
    found = audit.look(root)
    assert found.line() == (
        f"{root}: NOT whole: 2 of 4 shards damaged (00001, 00002); shards/{three}.json, std.npy "
        f"damaged; repair: rm -f {root}/products/{{{one},{two}}}.json {root}/shards/{three}.npy "
        f"{root}/shards/{three}.json {root}/summary.json {root}/ledger.tsv, then snakemake as "
        "before"
    )
    subprocess.run(["bash", "-ec", found.repair], check=True)
    store = Store(plans.load(made.plan))
    assert (store.missing(), store.missing_copies()) == (["00001", "00002"], ["00003"])
    assert not store.is_listed()
    assert not store.is_summed(("sum",))


@pytest.mark.parametrize("pattern", ["products/00001-*.npy", "products/00001-*.json", "sum.npy",
                                     "shards/00001-*.npy", "plan.json", "ledger.tsv"])  # fmt: skip
def test_a_folder_in_place_of_a_file_is_moved_by_the_repair(made, pattern):
    """What lies in it may be the user's; one that was moved before stays as well."""
    (path,) = made.root.glob(pattern)
    aside = path.with_name(f"{path.name}.moved")
    path.unlink()
    for folder, text in ((path, "now"), (aside, "before")):
        folder.mkdir()
        (folder / "notes.txt").write_text(text)
    subprocess.run(["bash", "-ec", audit.look(made.root).repair], check=True)
    assert not path.exists()
    assert (aside / "notes.txt").read_text() == "now"
    assert "before" in [path.read_text() for path in made.root.rglob("notes.txt")]


def test_an_unfinished_run_is_no_damage(tmp_path):
    """Shards without receipts, and a sum that is still to come, end with 75."""
    made = factories.plan(tmp_path, factories.stack((6, 4, 4)), shards=3)
    root = made.results.root
    factories.copied(made)
    job.run_shard(made, "00001")
    made.results.product(made.shards["00002"].name).write_bytes(
        b"half a file, as a killed writer cannot leave it"
    )
    found = audit.look(root)
    assert found.code == 75
    assert found.line() == f"{root}: unfinished: 2 of 3 shards are not computed yet"
    factories.computed(made)
    found = audit.look(root)
    assert found.line() == f"{root}: unfinished: all 3 shards are computed, but not summed yet"


def test_what_is_of_another_config_is_counted_and_left(tmp_path):
    """After a change of the config old files are no damage, and the new ones are missing."""
    old = finished(tmp_path, factories.stack((6, 4, 4)), shards=3)
    files = [*old.results.products.iterdir(), *old.results.shards.iterdir()]
    nbytes = sum(path.stat().st_size for path in files)
    made = factories.plan(tmp_path, input=str(tmp_path / "input.npy"), shards=2)
    found = audit.look(made.results.root)
    assert found.line().endswith("unfinished: 2 of 2 shards are not computed yet")
    assert found.others[1] >= nbytes
    assert "of another config: " in found.text()
    assert "shardwise clean" in found.text()
    assert not found.of(audit.DAMAGED)


def test_a_shard_that_was_lost_after_the_sum_is_damage(made):
    """What the summary vouches for has to be there."""
    made.receipt(row(made, "00000").name).unlink()
    assert audit.look(made.root).code == 3
    made.summary.unlink()
    assert audit.look(made.root).code == 75


def test_a_receipt_of_another_version_is_named(made):
    """Its schema is told, and no command would remove it."""
    path = made.receipt(row(made, "00002").name)
    factories.rewritten(path, schema=7)
    found = audit.look(made.root)
    assert found.code == 3
    assert "1 of 4 shards of another version" in found.line()
    assert "rm -f" not in found.line()
    assert "of schema 7" in found.of(audit.UNKNOWN)[0].reason


def test_a_forged_summary_is_compared_with_the_plan(made):
    """A receipt with a digest of its own still has to say what the plan says."""
    total = json.loads(made.summary.read_bytes())["files"]["sum"]
    for change in ({"shards": 3}, {"files": {"../sum": total}}):
        factories.rewritten(made.summary, **change)
        assert audit.look(made.root).code == 3


def test_the_synthetic_stack_is_one_of_the_results(tmp_path):
    """It is read and compared in any case, where it is still there."""
    recipe = {"matrices": 6, "dim": 8, "dtype": "float64", "seed": 1}
    made = finished(tmp_path, synthetic=recipe, shards=2, keep="sum")
    moved = tmp_path / "moved"
    made.results.root.rename(moved)
    assert audit.look(moved).verdict == "whole"
    factories.flip(moved / "input.npy", 4500)
    one = made.shards["00001"].name
    (moved / "products" / f"{one}.npy").unlink()
    found = audit.look(moved)
    receipt = moved / made.synthetic_receipt.name
    assert found.line().endswith(
        f"1 of 2 shards damaged (00001); input.npy damaged; repair: rm -f "
        f"{moved}/products/{one}.json {moved}/input.npy {receipt}, then snakemake as before"
    )
    (moved / "input.npy").unlink()
    assert "input" not in audit.look(moved).line()


@pytest.mark.timeout(60)
def test_a_pipe_is_not_waited_for(made):
    """In place of a file it is damage, of that file alone, and named."""
    patterns = "shards/00001-*.npy", "sum.npy", "ledger.tsv"
    paths = [next(made.root.glob(pattern)) for pattern in patterns]
    for path in paths:
        factories.pipe(path)
    damaged = [finding.reason for finding in audit.look(made.root).of(audit.DAMAGED)]
    assert sorted(damaged) == sorted(f"{path} is not a file" for path in paths)


def test_without_a_plan_nothing_can_be_judged(made, tmp_path):
    """None at all is bad input; without one of its three files it is damaged."""
    for folder, said in ((tmp_path / "nowhere", "no such folder"), (tmp_path, "holds no plan")):
        with pytest.raises(InputError, match=said):
            audit.look(folder)
    for path in (made.plan, made.plan_facts, made.sources):
        aside = path.rename(path.with_suffix(".aside"))
        found = audit.look(made.root)
        assert found.code == 3
        assert f"rm -f {made.root}/plan.json {made.root}/plan.tsv" in found.line()
        aside.rename(path)


def test_the_command_line(made, tmp_path):
    """Its last line is the verdict, its exit code the contract's; --json holds all of it."""
    done = factories.run("verify", made.root)
    assert (done.returncode, done.stdout) == (0, audit.look(made.root).line() + "\n")
    made.statistic("sum").write_bytes(b"")
    done = factories.run("verify", made.root, "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["code"], found["verdict"]) == (3, 3, "damaged")
    assert found["line"] == audit.look(made.root).line()
    assert [f["path"] for f in found["findings"]] == ["sum.npy"]
    (tmp_path / "mine.yaml").write_text("results: there\nshard: 3\n")  # no folder is guessed
    done = factories.run("verify", "--configfile", "mine.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean shards" in done.stderr


# Who made a number.


def test_the_summary_says_who_made_it(model):
    """Devices, nodes and software with their shards; plan, code, and the whole config."""
    summary, plan = receipts.read(model.results.summary, receipts.SumReceipt), model.facts
    receipt = factories.receipt(model)
    (software,) = summary.made_by["software"]
    assert summary.made_by["devices"] == [{"name": "CPU", "uuid": None, "shards": 4}]
    assert summary.made_by["nodes"] == {receipt.node: 4}
    assert (software["shards"], software["versions"]) == (4, receipt.versions)
    assert {"numpy", "python", "shardwise"} <= set(receipt.versions)
    assert {"numpy", "mpi4py", "mpi"} <= set(summary.versions)
    assert (summary.plan, summary.config) == (plan.digest, plan.config_digest)
    assert set(plan.config) == set(vars(factories.settings())) - set(NO_PLAN)


def test_the_commit_is_told_to_all_jobs(tmp_path, monkeypatch):
    """A clone is known by its commit, a changed one by a plus; none above it is."""

    def git(*words):
        line = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=b", *words]
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()

    environ = {}
    host.announce(environ, tmp_path)
    assert (environ[host.VARIABLE], host.announced(environ)) == ("", None)
    git("init", "-q")
    for name in ("Snakefile", "config.yaml"):
        (tmp_path / name).write_text("a")
        git("add", name)
    git("commit", "-q", "-m", "first")
    number = git("rev-parse", "HEAD")[:12]
    (tmp_path / "inner").mkdir()
    (tmp_path / "config.yaml").write_text("b")  # a user's
    assert [host.commit(tmp_path / name) for name in ("", "inner")] == [number, None]
    (tmp_path / "Snakefile").write_text("b")
    host.announce(environ, tmp_path)
    monkeypatch.setenv(host.VARIABLE, environ[host.VARIABLE])
    assert receipts.describe_origin("shard", 0.0)["commit"] == f"{number}+"


def test_shards_of_several_devices_are_counted():
    """Each device, node and set of libraries stands there once, with its shards."""
    rows = [("GPU-a", "n1", "14.2"), ("GPU-b", "n1", "14.2"), ("GPU-a", "n2", "14.3")]
    found = [
        SimpleNamespace(device=receipts.UsedDevice("H200", uuid, memory=1), node=node, algorithm=3,
                        commit=None, versions={"cupy": cupy})
        for uuid, node, cupy in rows
    ]  # fmt: skip
    made = receipts.count_makers(found)
    assert [(d["uuid"], d["shards"]) for d in made["devices"]] == [("GPU-a", 2), ("GPU-b", 1)]
    assert made["nodes"] == {"n1": 2, "n2": 1}
    assert [(s["versions"]["cupy"], s["shards"]) for s in made["software"]] == [
        ("14.2", 2), ("14.3", 1),
    ]  # fmt: skip
