"""The audit of a results folder: only a folder without a changed bit is called whole."""

import json
import os
import random
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from shardwise import host
from shardwise.errors import InputError
from shardwise.files.paths import Results
from shardwise.multiply import job
from shardwise.observe import audit
from shardwise.observe.observer import Observer
from shardwise.plan import config
from shardwise.plan import plan as plans
from shardwise.plan.plan import Shard
from shardwise.records import receipts
from shardwise.records.store import Store
from shardwise.units import human_bytes

from tests import factories


def finished(folder: Path, left=None, names=("sum",), right=None, **over):
    """A plan that was computed and summed."""
    made = factories.listed(factories.plan(folder, left, right, **over))
    factories.reduced(made, *names)
    return made


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A whole results folder, not to be changed."""
    folder = tmp_path_factory.mktemp("model")
    return finished(folder, factories.stack((12, 16, 16)), ("sum", "std", "max"), shards=4)


@pytest.fixture
def made(model, tmp_path):
    """A copy of the model in another place."""
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
    """One line has the numbers of shards and bytes, and the results; the command prints it, too."""
    before = state(made.root)
    done = factories.run("verify", made.root)
    nbytes = sum(path.stat().st_size for path in made.root.rglob("*.npy"))
    text = f"whole: 4 shards, {human_bytes(nbytes)}, sum.npy, std.npy, max.npy proven"
    assert (done.returncode, done.stdout) == (0, f"{made.root}: {text}\n")
    found = audit.look(made.root)
    assert (found.verdict, found.code, found.nbytes, found.findings) == ("whole", 0, nbytes, [])
    assert state(made.root) == before
    made.statistic("sum").write_bytes(b"")
    done = factories.run("verify", made.root, "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["code"], told["verdict"]) == (3, 3, "damaged")
    assert told["line"] == audit.look(made.root).line()
    assert [f["path"] for f in told["findings"]] == ["sum.npy"]


@pytest.mark.fault("damage to a file")
def test_no_changed_bit_is_overlooked(made, tried):
    """With one bit flipped in any result file the folder is not whole, and the file is named."""
    seed = random.Random(7)
    files = sorted(p for p in made.root.rglob("*") if p.is_file() and p.parent.name != "multiply")
    files = [p for p in files if not {"logs", "done"} & set(p.parts) and p != made.marker]
    assert len(files) == 4 * 4 + 8
    for path in files:
        raw = path.read_bytes()
        for _ in range(4):
            tried()
            factories.flip(path, seed.randrange(len(raw)), seed.randrange(8))
            found = audit.look(made.root)
            assert found.code == 3, (path, found.line())
            named = [f for f in found.findings if path.stem in (Path(f.path).stem, f.shard)]
            assert named or path.stem in ("plan", "sources"), (path, found.line())
            path.write_bytes(raw)
    assert audit.look(made.root).verdict == "whole"


def test_what_is_damaged_is_named_with_the_command_that_repairs_it(made):
    """Products, a copy, the ledger, a result; after the command, a run has to make just these."""
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
        f"{root}: NOT whole: 4 damaged (00001, 00002, shards/{three}.json, "
        f"std.npy); repair: rm -f {root}/products/{{{one},{two}}}.json {root}/ledger.tsv "
        f"{root}/shards/{three}.json {root}/std.npy {root}/summary.json, then start the run again"
    )
    subprocess.run(["bash", "-ec", found.repair], check=True)
    store = Store(plans.load(made.plan))
    assert (store.missing(), store.missing_copies()) == (["00001", "00002"], ["00003"])
    assert not store.is_listed()
    assert not store.is_summed(("sum",))


def test_a_copy_of_other_matrices_than_the_product_is_damage(made):
    """Both agree with their receipts; after the repair, the next run makes both again."""
    one, other = row(made, "00001"), row(made, "00000")
    factories.kept(made.shard(one.input_name), made.shard(other.input_name).read_bytes())
    facts = json.loads(made.shard_receipt(other.input_name).read_bytes())["file"]
    factories.rewritten(made.shard_receipt(one.input_name), file=facts)
    found = audit.look(made.root)
    assert {each.reason.partition(" with")[0] for each in found.of(audit.DAMAGED)} == {
        "was made from matrices"
    }
    subprocess.run(["bash", "-ec", found.repair], check=True)
    store = Store(plans.load(made.plan))
    assert (store.missing(), store.missing_copies()) == (["00001"], ["00001"])


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
    assert found.line() == f"{root}: unfinished: 3 shards are computed, but not summed yet"


def test_a_receipt_of_another_version_is_named(made):
    """Its schema is named, and no repair command would remove it."""
    path = made.receipt(row(made, "00002").name)
    factories.rewritten(path, schema=7)
    found = audit.look(made.root)
    assert found.code == 3
    assert "NOT whole: 1 unknown (00002)" in found.line()
    assert "rm -f" not in found.line()
    assert "of schema 7" in found.of(audit.UNKNOWN)[0].reason


def test_a_forged_summary_is_compared_with_the_plan(made):
    """A valid digest is not enough: its plan, its files and the receipts have to match, too."""
    said = json.loads(made.summary.read_bytes())
    total, plan = said["files"]["sum"], said["plan"]
    for change in ({"plan": "0" * 16}, {"files": {"../sum": total}}):
        factories.rewritten(made.summary, **change)
        assert audit.look(made.root).code == 3
    factories.rewritten(made.summary, plan=plan, files={"sum": total})
    assert audit.look(made.root).code == 0
    made.receipt(row(made, "00000").name).unlink()
    assert audit.look(made.root).code == 3
    made.summary.unlink()
    assert audit.look(made.root).code == 75


def test_the_synthetic_stack_is_one_of_the_results(tmp_path):
    """The audit always reads and compares the stack if it is still there."""
    recipe = {"matrices": 6, "dim": 8, "dtype": "float64", "seed": 1}
    made = finished(tmp_path, synthetic=recipe, shards=2, keep="sum")
    made.results.root.rename(moved := tmp_path / "moved")
    assert audit.look(moved).verdict == "whole"
    factories.flip(moved / "input.npy", 4500)
    files = f"{moved}/input.npy {moved}/ledger.tsv {moved}/summary.json"
    told = f"1 damaged (input.npy); repair: rm -f {files}, then start the run again"
    assert audit.look(moved).line().endswith(told)
    (moved / "input.npy").unlink()
    assert "input" not in audit.look(moved).line()


@pytest.mark.timeout(60)
def test_a_pipe_is_not_waited_for(made):
    """A pipe in place of a file is named, as damage to that file alone."""
    patterns = "shards/00001-*.npy", "sum.npy", "ledger.tsv"
    paths = [next(made.root.glob(pattern)) for pattern in patterns]
    for path in paths:
        factories.pipe(path)
    damaged = [finding.reason for finding in audit.look(made.root).of(audit.DAMAGED)]
    assert sorted(damaged) == sorted(f"{path} is not a file" for path in paths)


def test_without_a_plan_nothing_can_be_judged(made, tmp_path):
    """No plan at all is bad input; a plan that lacks one of its three files is damaged."""
    with pytest.raises(InputError, match="holds no plan"):
        audit.look(tmp_path)
    assert "no such folder" in factories.run("verify", tmp_path / "nowhere").stderr
    for path in (made.plan, made.plan_facts, made.sources):
        aside = path.rename(path.with_suffix(".aside"))
        found = audit.look(made.root)
        assert found.code == 3
        assert f"rm -f {made.root}/plan.json {made.root}/plan.tsv" in found.line()
        aside.rename(path)


def test_the_commit_is_told_to_all_jobs(tmp_path, monkeypatch):
    """A clone has its commit, with a plus if changed; a folder inside a clone has none."""

    def git(*words):
        line = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=b", *words]
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()

    monkeypatch.setenv(host.VARIABLE, "of another run")
    for name in ("Snakefile", "config.yaml", "inner/a"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("a")
    host.announce(tmp_path)
    assert (os.environ[host.VARIABLE], host.announced()) == ("", None)
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        git(*words)
    number = git("rev-parse", "HEAD")[:12]
    (tmp_path / "config.yaml").write_text("b")  # a user's
    assert [host.commit(tmp_path / name) for name in ("", "inner")] == [number, None]
    (tmp_path / "Snakefile").write_text("b")
    git("symbolic-ref", "HEAD", os.fsdecode(b"refs/heads/\xff"))
    git("reset", "-q", number)
    for name in ("GIT_DIR", "GIT_INDEX_FILE"):  # as in a hook of another clone
        monkeypatch.setenv(name, str(tmp_path / "other"))
    host.announce(tmp_path)
    assert receipts.describe_origin("shard", 0.0)["commit"] == f"{number}+"


@pytest.mark.parametrize("kind", ["plan", "receipt", "product", "sum", "products"])
def test_what_may_not_be_read_is_not_called_damaged(model, kind):
    """Its repair could remove a whole file of a colleague; exit code 2 says who can help."""
    top, user = Path(tempfile.mkdtemp()), os.geteuid()  # pytest's own folder is private
    results, name = Results(top / "results"), row(model.results, "00001").name
    try:
        top.chmod(0o755)
        shutil.copytree(model.results.root, results.root)
        path = {
            "plan": results.plan_facts, "receipt": results.receipt(name),
            "product": results.product(name), "sum": results.statistic("sum"),
            "products": results.products,
        }[kind]  # fmt: skip
        path.chmod(0)
        if user == 0:  # who may read anything
            os.seteuid(12345)
        with pytest.raises(InputError, match=rf"{path} cannot be read: .* chmod -R a\+rX"):
            audit.look(config.existing_folder(None, results.root))
        with pytest.raises(InputError, match=str(path)):
            Observer(config.existing_folder(None, results.root)).look()
    finally:
        os.seteuid(user)
        shutil.rmtree(top)
