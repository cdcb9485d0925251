"""Failure files: a failing task writes one, a succeeding task removes it, a retry reads it."""

import os

import pytest
from shardwise import errors
from shardwise.errors import DeviceFailed, InputError, IntegrityError, TryAgain
from shardwise.files.paths import Results
from shardwise.records import failures

NAME, FOLDED = "00001-0123456789ab", "0012345-0123456789ab"


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A results folder, in a run."""
    monkeypatch.setenv(failures.RUN, "aaaaaaaaaaaa")
    return Results(tmp_path)


def fail(results, error, name=NAME):
    """A task fails with this error."""
    with pytest.raises(type(error)), failures.noted(results, name, results.log("multiply", name)):
        raise error


def test_no_name_in_a_long_reason_is_cut(results):
    """The command in it can be pasted: it removes no file but those that it names."""
    names = [f"products/{i:05}.json" for i in range(999)]
    fail(results, IntegrityError(f"compute them again: rm -f {' '.join(names)}"))
    reason = failures.read(results.failure(NAME)).reason
    command, more = reason.partition("rm -f ")[2].split("; ")
    assert command.split() == names[: len(command.split())]
    assert (len(reason) < 2100, more) == (True, "… (the log has the rest)")


@pytest.mark.parametrize("name", [NAME, FOLDED, "reduce-0123456789ab"])
@pytest.mark.parametrize(("error", "code"), [
    (InputError("a"), 2), (InputError("a\nTraceback (most recent call last):\n  b"), 2),
    (IntegrityError("a\n  b"), 3), (TryAgain("a"), 75), (DeviceFailed("a"), 75),
    (MemoryError(), 75), (ZeroDivisionError("a"), 1),
])  # fmt: skip
def test_a_failure_lies_there_until_its_task_succeeds(results, name, error, code):
    """The file has the exit code and a reason of one line; a traceback is only in the log."""
    fail(results, error, name)
    ((found, failure),) = failures.of_this_run(results, ["00000-0123456789ab", name]).items()
    assert (found, failure.code, failure.run) == (name, code, "aaaaaaaaaaaa")
    words, _, _ = errors.verdict(error)[1].partition("\nTraceback (most recent call last)")
    assert failure.reason == words.replace("\n  ", "; ")
    assert failure.log == os.path.relpath(results.log("multiply", name), results.root)
    with failures.noted(results, name):
        pass
    assert failures.of_this_run(results, [name]) == {}


@pytest.mark.parametrize(("error", "run", "again"), [
    (InputError("bad\nTraceback (most recent call last):\nbad"), "a" * 12, False),
    (IntegrityError("bad"), "a" * 12, False), (TryAgain("bad"), "a" * 12, True),
    (InputError("bad"), "b" * 12, True),
])  # fmt: skip
def test_what_failed_for_good_is_not_tried_again_in_its_run(
    results, monkeypatch, error, run, again
):
    """A retry repeats the message; it tries again in the next run, or after TryAgain."""
    fail(results, error)
    monkeypatch.setenv(failures.RUN, run)
    if again:
        failures.refuse_again(results, NAME)
    else:
        with pytest.raises(type(error), match=r"^bad$"):
            failures.refuse_again(results, NAME)


def test_a_suspect_device_is_barred_for_its_run(results, monkeypatch):
    """Even if the shard succeeds elsewhere; a new run takes the device again."""
    failures.note(results, NAME, 75, "wrong products", device="GPU-1", suspect=True)
    failures.note(results, FOLDED, 75, "it was lost", device="GPU-2")
    failures.forget(results, NAME)
    assert [(uuid, one.reason) for uuid, one in failures.barred(results).items()] == [
        ("GPU-1", "wrong products")
    ]
    monkeypatch.setenv(failures.RUN, "b" * 12)
    assert failures.barred(results) == {}
    failures.forget_devices(results)
    monkeypatch.setenv(failures.RUN, "a" * 12)
    assert failures.barred(results) == {}


def test_a_failure_that_cannot_be_noted_is_raised_all_the_same(results):
    """A file that is none says nothing; if none can be written, the task's own error counts."""
    results.failed.mkdir()
    results.failure(NAME).write_bytes(b"{}")
    assert failures.of_this_run(results, [NAME]) == failures.barred(results) == {}
    results.failure(NAME).unlink()
    results.failed.rmdir()
    results.failed.touch()
    fail(results, TryAgain("the disk is full"))
