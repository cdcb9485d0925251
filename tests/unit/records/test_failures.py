"""Failure files: a failing task writes one, a succeeding task removes it, a retry reads it."""

from argparse import Namespace

import pytest
from shardwise import errors
from shardwise.command import stages
from shardwise.errors import DeviceFailed, InputError, IntegrityError, TryAgain
from shardwise.records import failures
from shardwise.records.store import Store

from tests import factories


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A results folder, in a run, with its files in folders of a thousand."""
    monkeypatch.setenv(failures.RUN, "aaaaaaaaaaaa")
    return Store(factories.plan(tmp_path, factories.stack((1001, 1, 1)), shards=1001))


def fail(store, error, part="reduce"):
    """A task fails with this error."""
    with pytest.raises(type(error)), store.attempt(part):
        raise error


def test_no_name_in_a_long_reason_is_cut(store):
    """The command in it can be pasted: it removes no file but those that it names."""
    names = [f"products/{i:05}.json" for i in range(999)]
    fail(store, IntegrityError(f"compute them again: rm -f {' '.join(names)}"))
    reason = store.failure("reduce").reason
    command, more = reason.partition("rm -f ")[2].split("; ")
    assert command.split() == names[: len(command.split())]
    assert (len(reason) < 2100, more) == (True, "… (the log has the rest)")


@pytest.mark.parametrize(("part", "name", "log"), [
    ("0000001", "{row.name}", "logs/multiply/000/{row.name}.log"),
    ("copy-0000001", "copy-{row.input_name}", "logs/shard/000/{row.input_name}.log"),
    ("reduce", "reduce-{plan.key}", "logs/reduce/reduce.log"),
])  # fmt: skip
@pytest.mark.parametrize(("error", "code"), [
    (InputError("a"), 2), (InputError("a\nTraceback (most recent call last):\n  b"), 2),
    (IntegrityError("a\n  b"), 3), (TryAgain("a"), 75), (DeviceFailed("a"), 75),
    (MemoryError(), 75), (ZeroDivisionError("a"), 1),
])  # fmt: skip
def test_a_failure_lies_there_until_its_task_succeeds(store, part, name, log, error, code):
    """The file has the exit code and a reason of one line; a traceback is only in the log."""
    facts = {"plan": store.plan, "row": store.plan.shards["0000001"]}
    (store.results.root / log.format(**facts)).mkdir(parents=True)
    fail(store, error, part)
    ((found, failure),) = store.failed(["0000000", part]).items()
    assert failure == failures.read(store.results.failure(name.format(**facts)))
    assert (found, failure.code, failure.run) == (part, code, "aaaaaaaaaaaa")
    words, _, _ = errors.verdict(error)[1].partition("\nTraceback (most recent call last)")
    assert failure.reason == words.replace("\n  ", "; ")
    assert failure.log == log.format(**facts)
    with store.attempt(part):
        pass
    assert store.failed([part]) == {}


@pytest.mark.parametrize(("error", "run", "again"), [
    (InputError("bad\nTraceback (most recent call last):\nbad"), "a" * 12, False),
    (IntegrityError("bad"), "a" * 12, False), (TryAgain("bad"), "a" * 12, True),
    (InputError("bad"), "b" * 12, True),
])  # fmt: skip
def test_what_failed_for_good_is_not_tried_again_in_its_run(store, monkeypatch, error, run, again):
    """A retry repeats the message; it tries again in the next run, or after TryAgain."""
    fail(store, error, "0000001")
    monkeypatch.setenv(failures.RUN, run)
    words = dict.fromkeys(("key", "memory", "device_wait"))
    own = Namespace(plan=store.results.plan, shard="0000001", **words)
    assert again or factories.refusal(stages.multiply, own, kind=type(error)) == "bad"
    assert not again or stages.multiply(own) is None
    assert store.is_whole("0000001") == again


def test_a_suspect_device_is_barred_for_its_run(store, monkeypatch):
    """Even if the shard succeeds elsewhere; a new run takes the device again."""
    store.fail("0000000", DeviceFailed("wrong products", suspect=True), "GPU-1")
    store.fail("0000001", DeviceFailed("it was lost"), "GPU-2")
    store.forget("0000000")
    ((uuid, why),) = failures.barred(store.results).items()
    assert (uuid, why.reason) == ("GPU-1", "wrong products")
    monkeypatch.setenv(failures.RUN, "b" * 12)
    assert failures.barred(store.results) == {}
    failures.forget_devices(store.results)
    monkeypatch.setenv(failures.RUN, "a" * 12)
    assert failures.barred(store.results) == {}


def test_a_failure_that_cannot_be_noted_is_raised_all_the_same(store):
    """A file that is none says nothing; if none can be written, the task's own error counts."""
    store.results.failed.mkdir()
    store.results.failure(f"reduce-{store.plan.key}").write_bytes(b"{}")
    assert store.failed(["reduce"]) == failures.barred(store.results) == {}
    store.results.failed.rename(store.results.root / "aside")
    store.results.failed.touch()
    fail(store, TryAgain("the disk is full"))
