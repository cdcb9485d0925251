"""The audit of a results folder: only a folder without a changed bit is called whole."""

import json
import os
import random
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from shardwise import host
from shardwise.errors import InputError, IntegrityError
from shardwise.files.paths import Results
from shardwise.multiply import job
from shardwise.observe import audit
from shardwise.observe.status import look
from shardwise.plan import config
from shardwise.plan import plan as plan_file
from shardwise.records import receipts
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
    shutil.copytree(model.results.root, tmp_path / "elsewhere")
    return plan_file.load(tmp_path / "elsewhere" / "plan.tsv")


def test_what_is_whole_is_called_whole(made):
    """One line has the numbers of shards and bytes, and the results; nothing is changed."""
    root = made.results.root

    def files():
        return {p: (p.stat().st_mtime_ns, p.is_file() and p.read_bytes()) for p in root.rglob("*")}

    before, done = files(), factories.run("verify", root)
    nbytes = sum(path.stat().st_size for path in root.rglob("*.npy"))
    text = f"whole: 4 shards, {human_bytes(nbytes)}, sum.npy, std.npy, max.npy proven"
    assert (done.returncode, done.stdout, files()) == (0, f"{root}: {text}\n", before)
    made.results.statistic("sum").write_bytes(b"")
    done = factories.run("verify", root, "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["code"], told["verdict"]) == (3, 3, "damaged")
    assert list(told["damaged"]) == ["sum.npy"]


@pytest.mark.fault("damage to a file")
def test_no_changed_bit_is_overlooked(made, tried):
    """With one bit flipped in any result file the folder is not whole, and the file is named."""
    seed, root = random.Random(7), made.results.root
    files = sorted(p for p in root.rglob("*") if p.is_file() and p.parent.name != "multiply")
    files = [p for p in files if not {"logs", "done"} & set(p.parts) and p.name != ".shardwise"]
    assert len(files) == 4 * 4 + 8
    for path in files:
        raw = path.read_bytes()
        for _ in range(4):
            tried()
            factories.flip(path, seed.randrange(len(raw)), seed.randrange(8))
            found = audit.look(root)
            assert found.code == 3, (path, found.line())
            named = [name for name in found.damaged if path.stem == Path(name).stem]
            assert named or path.stem in ("plan", "sources"), (path, found.line())
            path.write_bytes(raw)
    assert audit.look(root).verdict == "whole"


def test_an_unfinished_run_is_no_damage(tmp_path):
    """Shards without receipts end with 75."""
    made = factories.copied(factories.plan(tmp_path, factories.stack((6, 4, 4)), shards=3))
    job.run_shard(made, "00001")
    factories.file(made, "product", "00002").write_bytes(b"as a killed writer cannot leave it")
    found = audit.look(made.results.root)
    line = f"{made.results.root}: unfinished: 2 of 3 shards are not computed yet"
    assert (found.code, found.line()) == (75, line)


def test_a_receipt_of_another_version_ends_the_audit(made):
    """It may be whole, so that no repair command removes it; its keys may be others."""
    factories.rewritten(factories.file(made, "receipt", "00002"), "device", schema=2)
    with pytest.raises(IntegrityError, match=r"of schema 2, .* use the version of Shardwise"):
        audit.look(made.results.root)


def test_without_a_plan_nothing_can_be_judged(made, tmp_path):
    """No plan at all is bad input; one that was changed is damaged."""
    with pytest.raises(InputError, match="there are no results of a run"):
        audit.look(tmp_path)
    assert "no such folder" in factories.run("verify", tmp_path / "nowhere").stderr
    made.results.sources.write_bytes(b"")
    found = audit.look(made.results.root)
    assert found.code == 3
    assert f"rm -f {made.results.plan_facts} {made.results.plan}" in found.line()


def test_the_commit_is_told_to_all_jobs(tmp_path, monkeypatch):
    """A clone has its commit, with a plus if its code was changed; another folder has none."""
    monkeypatch.setenv(host.VARIABLE, "of another run")
    (tmp_path / "Snakefile").write_text("a")
    host.announce(tmp_path)
    assert os.environ[host.VARIABLE] == ""
    git = ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    host.announce(tmp_path)
    assert re.fullmatch("[0-9a-f]{12}", number := os.environ[host.VARIABLE])
    (tmp_path / "Snakefile").write_text("b")
    host.announce(tmp_path)
    assert receipts.describe_origin("shard", 0.0)["commit"] == f"{number}+"


@pytest.mark.parametrize("kind", ["plan", "product"])
def test_what_may_not_be_read_is_not_called_damaged(model, kind):
    """Its repair could remove a whole file of a colleague; exit code 2 says who can help."""
    top, user = Path(tempfile.mkdtemp()), os.geteuid()  # pytest's own folder is private
    results, name = Results(top / "results"), model.shards["00001"].name
    try:
        top.chmod(0o755)
        shutil.copytree(model.results.root, results.root)
        path = results.plan_facts if kind == "plan" else results.product(name)
        path.chmod(0)
        if user == 0:  # who may read anything
            os.seteuid(12345)
        with pytest.raises(InputError, match=rf"{path} cannot be read: .* chmod -R a\+rX"):
            audit.look(config.existing_folder(None, results.root))
        with pytest.raises(InputError, match=str(path)):
            look(config.existing_folder(None, results.root))
    finally:
        os.seteuid(user)
        shutil.rmtree(top)
