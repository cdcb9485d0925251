"""A results folder is seen as it is: every state of a shard, the sum, and what cannot be read."""

import json
import os
import shutil
from functools import partial
from pathlib import Path

import pytest
from shardwise.observe.folder import Observer
from shardwise.observe.observation import (
    DAMAGED,
    DONE,
    FAILED,
    RUNNING,
    STATES,
    WAITING,
    Observation,
)
from shardwise.observe.verdict import verdict
from shardwise.records import ledger
from shardwise.records.timeline import PHASES

from tests import factories, pretend
from tests.unit.observe.test_audit import finished

NOW = pretend.NOW


def look(made: pretend.Pretended, at: float = NOW) -> Observation:
    """A first look at a folder."""
    return Observer(made.root).look(at)


def state(seen: Observation, shard: str = "00000") -> str:
    """The state of a shard."""
    return seen.shards[shard].state


def touch(path: Path, text: str, at: float) -> None:
    """A file that was written at a moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (at, at))


def start(made: pretend.Pretended, at: float, shard: str = "00000") -> None:
    """One more line in the journal of a shard."""
    path = made.plan.results.starts(shard)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as file:
        file.write(f"{at:.3f}\tnode01\t77\t\n")


def log(made: pretend.Pretended, text: str, at: float, rule: str = "multiply") -> None:
    """The log of the first shard."""
    touch(made.plan.results.log(rule, "00000"), text, at)


def undone(folder: Path) -> pretend.Pretended:
    """A plan of three shards that nothing has begun."""
    return pretend.run(folder, shards=3, waiting=3, devices=1)


# Runs as a whole.


@pytest.mark.parametrize("devices", [0, 3])
def test_shards_are_in_the_state_that_they_were_put_into(tmp_path, devices):
    """Done, running, failed, waiting and damaged shards are told apart, in the plan's order."""
    made = pretend.run(
        tmp_path, shards=40, devices=devices, failed=3, lost=2, running=3, waiting=5, damaged=2,
        unknown=1, unproven=1, slow=2,
    )  # fmt: skip
    seen = look(made)
    assert list(seen.shards) == list(made.plan.shards)
    for kind in STATES:
        found = [name for name, one in seen.shards.items() if one.state == kind]
        assert found == made.roles[kind], kind
    assert verdict(seen).kind == "damaged"


def test_a_shard_that_is_done_is_as_its_receipt_says(tmp_path):
    """Times, device and proof of a shard are those of its receipt."""
    made = pretend.run(tmp_path, shards=6)
    seen = look(made)
    for name, receipt in made.receipts.items():
        one = seen.shards[name]
        assert (one.started, one.finished) == (receipt["started"], receipt["finished"])
        assert one.seconds == pytest.approx(receipt["finished"] - receipt["started"])
        assert (one.device.uuid, one.device.node) == (receipt["device"]["uuid"], receipt["node"])
        assert one.proven
        assert one.held == receipt["held"]
        assert sum(one.held[phase] for phase in PHASES) == pytest.approx(one.seconds)


def test_a_run_of_this_version_is_seen(tmp_path):
    """What the stages themselves write is read: all done by the CPU, proven; summed only then."""
    made = factories.computed(factories.plan(tmp_path, factories.stack((4, 3, 3)), shards=2))
    ledger.write(made)
    seen = Observer(made.results.root).look()
    assert [one.state for one in seen.shards.values()] == [DONE, DONE]
    assert all(one.proven and one.device.name == "CPU" for one in seen.shards.values())
    assert seen.problems == ()
    assert (
        verdict(seen).words == "Not finished: all 2 shards are done, but they are not summed yet."
    )
    made = finished(tmp_path / "summed", factories.stack((4, 3, 3)), shards=2)
    assert verdict(Observer(made.results.root).look()).kind == "proven"


# What is not done.


def test_a_live_file_says_how_far_a_task_is(tmp_path):
    """A task at work is running, with its progress and its device."""
    made = pretend.run(tmp_path, shards=3, running=1, devices=1)
    one = look(made).shards["00002"]
    said = json.loads((made.plan.results.live / "00002.json").read_bytes())
    assert one.progress == pytest.approx(said["done"] / said["matrices"])
    assert (one.device.uuid, one.started) == (said["device"]["uuid"], said["started"])


def test_a_live_file_that_is_not_renewed_is_of_a_lost_task(tmp_path):
    """Thirty seconds after its last sign of life a task counts as lost, and not before."""
    made = pretend.run(tmp_path, shards=3, running=1, devices=1)
    observer = Observer(made.root)
    assert state(observer.look(NOW + 28), "00002") == RUNNING
    lost = observer.look(NOW + 31).shards["00002"]
    assert (lost.state, lost.attempts) == (FAILED, 1)
    assert "no sign of life since" in lost.failure.reason


OLD, ERROR = NOW - 200_000, "2026-11-18 10:00:00,000 ERROR no\n"


def live(made: pretend.Pretended, text: str) -> None:
    """The live file of the first shard."""
    touch(made.plan.results.live / "00000.json", text, NOW - 1)


@pytest.mark.parametrize(
    ("lay", "expected", "told"),
    [
        (lambda made: start(made, NOW - 10), RUNNING, None),  # for 30 s nothing else need speak
        (lambda made: start(made, NOW - 31), FAILED, "killed, or lost"),
        (lambda made: log(made, ERROR, NOW - 80, "shard"), FAILED, "no"),  # the copy
        (lambda made: (start(made, OLD), log(made, ERROR, OLD)), WAITING, None),  # another plan's
        # What is no live file of this shard, or no task of ours has written.
        *((partial(live, text=text), WAITING, None) for text in (
            "", "{", "[]", "null", '{"schema": 1}', '{"schema": 1, "shard": "00001"}', "9" * 5000,
        )),
        *((partial(live, text=json.dumps({"schema": 1, "shard": "00000", key: value})),
           WAITING, None) for key, value in (
            ("done", -3), ("matrices", 10**400), ("started", "x"), ("device", []),
            ("device", {"name": 3}), ("node", "\n"),
        )),
    ],
)  # fmt: skip
def test_a_shard_is_in_the_state_that_its_files_say(tmp_path, lay, expected, told):
    """Journal, logs and live file; the others are left as they are."""
    made = undone(tmp_path)
    lay(made)
    first, *others = look(made).shards.values()
    assert first.state == expected
    assert (told or "") in (first.failure.reason if first.failure else "")
    assert {one.state for one in others} == {WAITING}


def test_the_last_error_of_a_log_is_why_a_shard_failed(tmp_path):
    """The error in the log of the last attempt is told, in one line, with the log's name."""
    made = undone(tmp_path)
    start(made, NOW - 90)
    start(made, NOW - 40)
    lines = "2026-11-18 10:00:00,000 ERROR first\n2026-11-18 10:00:01,000 ERROR at\x1b[2J last\n"
    log(made, lines + "Traceback\n", NOW - 2)
    one = look(made).shards["00000"]
    assert (one.state, one.attempts, one.started) == (FAILED, 2, NOW - 40)
    assert one.failure.reason == "at\\x1b[2J last"
    assert (one.failure.log, one.failure.at) == ("logs/multiply/00000.log", NOW - 2)
    assert (made.root / one.failure.log).is_file()


def test_what_was_before_the_plan_is_of_another(tmp_path):
    """Receipts of an earlier plan leave the shards of this one waiting."""
    made = undone(tmp_path)
    other = pretend.run(tmp_path / "other", shards=3, devices=1, matrices=10_000, dim=1024)
    for receipt in (other.root / "products").glob("*.json"):
        shutil.copy2(receipt, made.root / "products")
    assert {one.state for one in look(made).shards.values()} == {WAITING}


def test_a_product_that_was_removed_is_waited_for(tmp_path):
    """An attempt that ended well, and whose receipt is gone since, is no failure."""
    made = pretend.run(tmp_path, shards=3, devices=1)
    made.plan.results.receipt("00000").unlink()
    assert state(look(made)) == WAITING


@pytest.mark.parametrize("harm", ["journal stays", "journal goes"])
def test_a_shard_that_is_done_during_a_look_is_done(tmp_path, monkeypatch, harm):
    """Its receipt came after the listing of products, and its live file, or journal, is gone."""
    made = pretend.run(tmp_path, shards=2, devices=1)
    journal, listed = made.plan.results.starts("00000"), os.listdir
    touch(journal, f"{NOW - 90}\n", NOW - 90)

    def late(folder):
        names = listed(folder)
        if Path(folder) != made.plan.results.products:
            return names
        if harm == "journal goes":
            journal.unlink()
        return [name for name in names if not name.startswith("00000.")]

    monkeypatch.setattr(os, "listdir", late)
    assert [state(look(made)), state(look(made), "00001")] == [DONE, DONE]


# What cannot be used.


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda r: r.write_bytes(r.read_bytes()[:-40]), "has changed since"),
        (lambda r: r.write_bytes(r.read_bytes().replace(b"cupy", b"cups")), "has changed since"),
        (lambda r: (r.unlink(), os.mkfifo(r)), "is not a file"),
        (lambda r: r.with_suffix(".npy").write_bytes(b"short"), "has 5 bytes"),
        (lambda r: r.with_suffix(".npy").unlink(), "is missing"),
        (lambda r: r.write_bytes(b" " * (1 << 21)), "more than any such file"),
        (lambda r: factories.rewritten(r, start=1), "says {'shard': '00000', 'start': 1,"),
    ],
)
def test_a_damaged_shard_is_named(tmp_path, harm, said):
    """A receipt that cannot be used, or fits no product, is damaged, and a line says why."""
    made = pretend.run(tmp_path, shards=3, devices=1)
    receipt = made.plan.results.receipt("00000")
    harm(receipt)
    seen = look(made)
    assert [one.state for one in seen.shards.values()] == [DAMAGED, DONE, DONE]
    assert said in seen.problems[0]
    assert "00000" in seen.problems[0]
    told = verdict(seen)
    assert told.kind == "damaged"
    assert f"rm -f {made.root}/products/00000.json" in told.words


def test_attempts_under_an_earlier_plan_do_not_count(tmp_path):
    """The journal of a shard outlives its plan: a new plan is no failure."""
    made = pretend.run(tmp_path, shards=2, devices=1)
    factories.rewritten(made.plan.results.receipt("00000"), attempt=3)
    old, new = NOW - 10**8, NOW - 100
    journal = made.plan.results.starts("00000")
    for times, attempts in (((old, old, new), 1), ((old, new, new), 2), ((new, new, new), 3)):
        touch(journal, "".join(f"{at}\n" for at in times), NOW - 50)
        assert look(made).shards["00000"].attempts == attempts


def test_a_live_file_of_an_earlier_attempt_says_nothing(tmp_path):
    """The task that left it was killed; the one that is at work now has not spoken yet."""
    made = undone(tmp_path)
    start(made, NOW - 20)
    said = {"schema": 1, "shard": "00000", "attempt": 1, "done": 6, "matrices": 10}
    touch(made.plan.results.live / "00000.json", json.dumps(said), NOW - 10)
    assert look(made).shards["00000"].progress == 0.6
    start(made, NOW - 5)
    one = look(made).shards["00000"]
    assert (one.state, one.attempts, one.progress, one.started) == (RUNNING, 2, None, NOW - 5)


def test_a_damaged_shard_that_is_begun_again_is_running(tmp_path):
    """A start behind the damage is a task that mends it."""
    made = pretend.run(tmp_path, shards=3, damaged=3, devices=1)
    assert state(look(made)) == DAMAGED
    start(made, NOW - 1)
    assert state(look(made)) == RUNNING


# The sum.


@pytest.mark.parametrize(
    ("parts", "kind", "words"),
    [
        ({}, "proven", "The sum is right: all 12 shards have proven their products"),
        ({"verify": False}, "unproven", "nothing has proven it: verify is false"),
        ({"unproven": 1}, "unproven", "1 of 12 shards"),
        ({"waiting": 1}, "unfinished", "Not finished: 11 of 12 shards are done."),
        ({"running": 2, "failed": 3, "waiting": 1}, "failed",
         "Not finished: 6 of 12 shards are done, 2 running, 3 failed."),
    ],
)  # fmt: skip
def test_the_verdict_is_a_sentence(tmp_path, parts, kind, words):
    """Whether the sum is right, why nothing has proven it, or what is done and what is not."""
    made = pretend.run(tmp_path, shards=12, **parts)
    told = verdict(look(made))
    assert told.kind == kind
    assert words in told.words
    assert ("make verify" in told.words) == (kind in ("proven", "unproven"))


@pytest.mark.parametrize(
    ("harm", "kind"),
    [
        (lambda r: r.statistic("sum").unlink(), "damaged"),
        (lambda r: r.statistic("sum").write_bytes(b"x"), "damaged"),
        (lambda r: r.ledger.unlink(), "unfinished"),
        (lambda r: r.ledger.write_bytes(b"\xff\0"), "unfinished"),
        (lambda r: factories.rewritten(r.summary, plan="0" * 16), "unfinished"),
        (lambda r: factories.rewritten(r.summary, files={"sum": []}), "damaged"),
        (lambda r: factories.rewritten(r.summary, files=[["sum"]]), "damaged"),
        (lambda r: factories.rewritten(r.summary, shards=1), "damaged"),
        (lambda r: r.summary.write_bytes(b"{}"), "damaged"),
        (lambda r: r.summary.unlink(), "unfinished"),
        (lambda r: factories.rewritten(r.receipt("00001"), finished=NOW + 5000), "unfinished"),
        (lambda r: factories.rewritten(r.receipt("00001"), attempt=9), "unfinished"),
        (lambda r: r.ledger.write_bytes(r.ledger.read_bytes() + b"x"), "unfinished"),
        (lambda r: r.ledger.write_bytes(b"x" + r.ledger.read_bytes()), "unfinished"),
        (lambda r: r.statistic("sum").write_bytes(
            r.statistic("sum").read_bytes().replace(b"False", b"True ")), "damaged"),
    ],
)  # fmt: skip
def test_a_sum_that_is_not_of_what_lies_there_is_not_trusted(tmp_path, harm, kind):
    """A sum of another plan, of other products, or that is not there, proves nothing."""
    made = pretend.run(tmp_path, shards=3)
    harm(made.plan.results)
    seen = look(made)
    assert not seen.summary_fits
    assert verdict(seen).kind == kind


@pytest.mark.parametrize("rule", ["ledger", "reduce"])
def test_a_stage_that_failed_is_told(tmp_path, rule):
    """The error of a stage for all shards stands among the failures, and in the verdict."""
    made = pretend.run(tmp_path, shards=3, summed=False)
    touch(made.plan.results.log(rule), "2026-11-18 10:00:00,000 ERROR no room\n", NOW)
    seen = look(made)
    assert seen.failures[rule].reason == "no room"
    assert verdict(seen).kind == "failed"
    assert "no room" in verdict(seen).words
    made.plan.results.ledger.touch()
    assert (rule in look(made).failures) == (rule == "reduce")


def test_the_one_job_for_all_has_failed_while_shards_are_missing(tmp_path):
    """Unless these tell why themselves, or have been at work since: then it was of another run."""

    def failures(folder, said="nobody", at=NOW, **parts):
        made = pretend.run(tmp_path / folder, shards=3, devices=1, **parts)
        lines = (said.format(*made.roles["failed"]), "of 3 shards 1 failed; 2 are whole")
        text = "".join(f"2026-11-18 10:00:00,000 ERROR {line}\n" for line in lines)
        touch(made.plan.results.log("pool"), text, at)
        seen = look(made)
        told = "pool: of 3 shards 1 failed" in verdict(seen).words
        assert told == bool(seen.failures)
        return seen.failures.keys()

    assert failures("missing", waiting=1) == {"pool"}
    assert not failures("whole")
    assert failures("running", running=1)
    assert not failures("since", running=1, at=NOW - 3000)
    assert not failures("named", "shard {0}: no (log: logs/multiply/{0}.log)", failed=1)


# The folder.


def test_an_empty_folder_is_no_fault(tmp_path):
    """A folder without a plan, or that is not there, is empty."""
    for root in (tmp_path, tmp_path / "nowhere"):
        seen = Observer(root).look()
        assert verdict(seen).kind == "empty"
        assert "run snakemake first" in verdict(seen).words


def test_a_plan_that_was_changed_is_damage(tmp_path):
    """A plan that is not as it was written is named, and nothing is said of its shards."""
    made = pretend.run(tmp_path, shards=3)
    made.plan.results.plan.write_bytes(made.plan.results.plan.read_bytes() + b"x")
    seen = look(made)
    assert (seen.plan, dict(seen.shards)) == (None, {})
    assert verdict(seen).kind == "damaged"
    assert "plan" in verdict(seen).words


def test_devices_in_quarantine_are_seen(tmp_path):
    """Entries of the quarantine that hold at the moment of the look are told."""
    made = pretend.run(tmp_path, shards=3, quarantined=1)
    assert [entry.uuid for entry in look(made).quarantined] == made.quarantined
    assert look(made, NOW + 100_000).quarantined == ()


def test_a_second_look_reads_only_what_has_changed(tmp_path, monkeypatch):
    """Files that are as they were are not opened again; one that has changed is."""
    made = pretend.run(tmp_path, shards=9, failed=1, running=1, waiting=1, devices=1)
    observer = Observer(made.root)
    first = observer.look(NOW)
    opened = []
    monkeypatch.setattr(os, "open", _noting(os.open, opened))
    assert observer.look(NOW).shards == first.shards
    assert [name for name in opened if "quarantine" not in name] == []
    path = made.plan.results.receipt(made.roles["done"][0])
    factories.rewritten(path, attempt=500)
    assert observer.look(NOW).shards[path.stem].attempts == 500
    # With the header of its product, which the judge compares.
    own = [path.name, made.plan.results.product(path.stem).name]
    assert [Path(name).name for name in opened if "products" in name] == own


def _noting(function, opened):
    def noting(path, *words, **more):
        opened.append(str(path))
        return function(path, *words, **more)

    return noting


def test_another_plan_is_read_anew(tmp_path):
    """Where the plan has changed under an observer, nothing of the one before is kept."""
    made = pretend.run(tmp_path, shards=3, devices=1)
    observer = Observer(made.root)
    assert len(observer.look(NOW).shards) == 3
    shutil.rmtree(made.root)
    other = pretend.run(tmp_path, shards=5, waiting=2, devices=1, matrices=7000)
    seen = observer.look(NOW)
    assert [one.state for one in seen.shards.values()] == [DONE] * 3 + [WAITING] * 2
    assert seen.plan.facts.digest == other.plan.facts.digest


def test_a_look_changes_nothing(tmp_path):
    """No file is written, none is touched."""
    made = pretend.run(tmp_path, shards=4, running=1, failed=1)
    before = {path: path.stat().st_mtime_ns for path in made.root.rglob("*")}
    look(made)
    assert {path: path.stat().st_mtime_ns for path in made.root.rglob("*")} == before
