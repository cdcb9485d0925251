"""A reduce that was killed: the next goes on from what it has left, and has the same bits."""

import json
import subprocess
import sys

import numpy as np
import pytest
from mpi4py import MPI
from shardwise.errors import InputError, IntegrityError, TryAgain
from shardwise.files import pieces
from shardwise.files.paths import STATISTICS
from shardwise.plan import memory, planner
from shardwise.records import ledger
from shardwise.records.locks import exclusive_lock
from shardwise.reduce import job, stripe
from shardwise.reduce.checkpoint import Checkpoint, CheckpointFolder

from tests import factories
from tests.factories import ROOT, SCRIPTS, nightly, noise

PIECE, BATCH = 256, 300


def world(ranks, made, names, victim=-1, after=0):
    """A reduce in small steps; its exit status, and the batches that its ranks have read."""
    launcher = str(factories.command("reduce")[0]).replace("python", "mpiexec")
    program = [sys.executable, "-m", "mpi4py", "-m", "tests.killed_program"]
    words = [made.results.plan, PIECE, BATCH, victim, after, *names]
    done = subprocess.run(
        [launcher, "-n", str(ranks), *program, *map(str, words)],
        capture_output=True, text=True, check=False, cwd=ROOT, timeout=100,
        env={"PYTHONPATH": f"{SCRIPTS}:{ROOT}", "PATH": "/usr/bin:/bin", "HOME": "/tmp"},
    )  # fmt: skip
    return done, [int(word) for word in done.stdout.split() if word.isdigit()]


def names_of(keep):
    """What can be computed."""
    return ["sum", "mean"] if keep == "sum" else list(STATISTICS)


def results(made, names):
    """The bytes of all results."""
    return {name: made.results.statistic(name).read_bytes() for name in names}


@pytest.mark.fault("a reduce killed half-way")
@pytest.mark.parametrize(
    ("keep", "dim", "ranks", "after"),
    [
        ("products", 12, (2, 3), 7),  # 576 bytes a product: three stripes, which teams share
        nightly("products", 5, (3, 1), 2),  # 100 bytes: ranks share the products
        ("products", 30, (2, 3), 40),  # 15 stripes, each of one rank
        ("sum", 30, (3, 2), 8),
        nightly("sum", 3, (2, 3), 1),  # tiny files: several are read together
    ],
)
def test_a_killed_reduce_is_continued(tmp_path, monkeypatch, keep, dim, ranks, after):
    """Other ranks go on where one was killed: fewer bytes are read again, and no bit differs."""
    monkeypatch.setattr(pieces, "CHECKSUM_PIECE_BYTES", PIECE)
    over = {"shards": 7, "keep": keep, "materialize": False}
    made = factories.computed(factories.plan(tmp_path, noise((24, dim, dim), "float32"), **over))
    ledger.write(made)
    names = names_of(keep)
    done, (everything,) = world(1, made, names)
    assert done.returncode == 0, done.stderr
    expected = results(made, names)
    for name in names:
        made.results.statistic(name).unlink()
    made.results.summary.unlink()
    done, _ = world(ranks[0], made, names, victim=ranks[0] - 1, after=after)
    assert done.returncode != 0
    assert not made.results.summary.exists()
    assert not any(made.results.statistic(name).exists() for name in names)
    assert list(made.results.partial.glob("*.part"))
    done, read = world(ranks[1], made, names)
    assert done.returncode == 0, done.stderr
    assert sum(read) < everything
    assert results(made, names) == expected
    assert not made.results.partial.exists()
    assert json.loads(made.results.summary.read_text())["ranks"] == ranks[1]


def test_what_was_damaged_is_not_continued(tmp_path, monkeypatch):
    """After an integrity error nothing is left: what is wrong may stand in it."""
    monkeypatch.setattr(pieces, "CHECKSUM_PIECE_BYTES", PIECE)
    made = factories.plan(tmp_path, noise((9, 12, 12), "float32"), shards=3, materialize=False)
    ledger.write(factories.computed(made))
    path = made.results.product("00001")
    raw = path.read_bytes()
    path.write_bytes(raw[:-3] + bytes([raw[-3] ^ 4]) + raw[-2:])
    with pytest.raises(IntegrityError, match=r"shard 00001: .*rm -f "):
        job.run(MPI.COMM_SELF, made.results.plan, ["sum"], save_every=0.0)
    assert not made.results.partial.exists()
    assert not made.results.statistic("sum").exists()
    path.write_bytes(raw)
    job.run(MPI.COMM_SELF, made.results.plan, ["sum"], save_every=0.0)
    np.testing.assert_allclose(
        np.load(made.results.statistic("sum")), factories.products(made).astype("f8").sum(axis=0)
    )


def test_what_is_read_is_noted_in_few_words(tmp_path, monkeypatch):
    """However many batches, units that follow each other are one run: nothing grows with N."""
    monkeypatch.setattr(pieces, "CHECKSUM_PIECE_BYTES", PIECE)
    made = factories.computed(factories.plan(tmp_path, noise((40, 8, 8), "float32"), shards=7))
    ledger.write(made)
    seen, original = [], stripe.StripeSum.add

    def add(self, part):
        original(self, part)
        seen.append(list(self.runs))

    monkeypatch.setattr(stripe.StripeSum, "add", add)
    monkeypatch.setattr(memory, "REDUCE_BATCH_BYTES", 1)
    job.run(MPI.COMM_SELF, made.results.plan, ["sum"])
    assert seen == [[(0, unit + 1)] for unit in range(40)]


def test_two_reduces_of_one_folder_are_refused(tmp_path):
    """The second ends with 75 and says why."""
    made = factories.plan(tmp_path, noise((3, 2, 2)), shards=1, materialize=False)
    ledger.write(factories.computed(made))
    with exclusive_lock(made.results), pytest.raises(TryAgain, match="another reduce works on"):
        job.run(MPI.COMM_SELF, made.results.plan, ["sum"])
    job.run(MPI.COMM_SELF, made.results.plan, ["sum"])


STRANGERS = {
    "a folder": lambda folder: (folder / "old").mkdir(),
    "a folder of our name": lambda folder: (folder / "sum.npy").mkdir(),
    "a file": lambda folder: (folder / "notes.txt").write_text("mine"),
    "a file with our suffix": lambda folder: (folder / "mine.part").write_text("mine"),
    "a hidden file": lambda folder: (folder / ".mine").write_text("mine"),
    "a link of our name": lambda folder: (folder / "sum.npy").symlink_to(folder.parent / "x.npy"),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_what_a_reduce_did_not_write_is_named_and_kept(tmp_path, kind):
    """In partial/, before any work, with 2; the planning of the next run says the same."""
    made = factories.plan(tmp_path, noise((3, 2, 2)), shards=1, materialize=False)
    ledger.write(factories.computed(made))
    folder = made.results.partial
    folder.mkdir()
    STRANGERS[kind](folder)
    (stranger,) = folder.iterdir()
    told = factories.refusal(job.run, MPI.COMM_SELF, made.results.plan, ["sum"])
    assert f"{stranger}: no reduce of ours writes this; move it out of {folder}" in told
    with pytest.raises(InputError, match="no reduce of ours writes this"):
        planner.check_folder(made)
    assert [path.name for path in folder.iterdir()] == [stranger.name]


def test_what_comes_meanwhile_is_kept(tmp_path):
    """Work that is done with removes its own files only, what a killed one left included."""
    folder = tmp_path / "partial"
    partial = CheckpointFolder(folder, "d")
    partial.save("1-0-3", Checkpoint([(0, 4)], 3), [])
    (folder / ".1-0-3.part.node.7.0123abcd.tmp").touch()
    partial.file("sum").touch()
    for name in ("mine", ".nfs00000000007a1b2c00000001"):  # the latter is gone with its reader
        (folder / name).mkdir()
    partial.clear()
    assert sorted(path.name for path in folder.iterdir()) == [
        ".nfs00000000007a1b2c00000001",
        "mine",
    ]
    (folder / ".nfs00000000007a1b2c00000001").rmdir()
    (folder / "mine").rmdir()
    partial.clear()
    assert not folder.exists()
    partial.clear()


@pytest.mark.parametrize(("seconds", "saved"), [("1e-9", True), ("inf", False)])
def test_the_command_saves_as_often_as_it_is_told(tmp_path, seconds, saved):
    """One that cannot publish in the end leaves its work, if there was time to save it."""
    made = factories.plan(tmp_path, noise((3, 2, 2)), shards=1, materialize=False)
    ledger.write(factories.computed(made))
    made.results.statistic("sum").mkdir()
    words = ("--plan", made.results.plan, "--ranks", 1, "--save-every", seconds)
    done = factories.run("reduce", *words)
    assert done.returncode == 75, done.stderr
    assert bool(list(made.results.partial.glob("*.part"))) == saved
    made.results.statistic("sum").rmdir()
    done = factories.run("reduce", *words)
    assert done.returncode == 0, done.stderr
    assert ("goes on from what an earlier one has left" in done.stderr) == saved


@pytest.fixture
def partial(tmp_path):
    """A folder of unfinished work."""
    (tmp_path / "partial").mkdir()
    return CheckpointFolder(tmp_path / "partial", "d1")


@pytest.mark.parametrize(
    ("one", "other", "kept"),
    [
        (Checkpoint([(0, 4)], 1), Checkpoint([(0, 6)], 1), [Checkpoint([(0, 6)], 1)]),
        (Checkpoint([(0, 4)], 1), Checkpoint([(4, 6)], 1), None),
        (Checkpoint([(0, 4)], 1), Checkpoint([(0, 4)], 2), None),
        (Checkpoint([(0, 9)], 1), Checkpoint(finished=[1]), [Checkpoint(finished=[1])]),
        (Checkpoint(finished=[1]), Checkpoint(finished=[1, 2]), [Checkpoint(finished=[1, 2])]),
        (Checkpoint([(0, 9)], 3), Checkpoint(finished=[1]), None),
    ],
)
def test_no_unit_is_taken_twice(partial, one, other, kept):
    """Of records that overlap, the one with more counts; others stand side by side."""
    partial.save("one", one, [])
    partial.save("other", other, [])
    found = [(r.stripe, r.runs, r.finished) for r in partial.records()]
    expected = [one, other] if kept is None else kept
    assert sorted(found) == sorted((r.stripe, r.runs, r.finished) for r in expected)
    assert len(list(partial.folder.iterdir())) == len(expected)


@pytest.mark.parametrize("how", ["of another plan", "damaged"])
def test_records_that_do_not_fit_are_removed(partial, how):
    """They are computed again, never used."""
    partial.save("a", Checkpoint([(0, 4)], 3), [np.arange(100)])
    path = next(partial.folder.iterdir())
    if how == "damaged":
        raw = path.read_bytes()
        path.write_bytes(raw[:-9] + bytes([raw[-9] ^ 1]) + raw[-8:])
    else:
        partial = CheckpointFolder(partial.folder, "d2")
    assert partial.records() == []
    assert not path.exists()
