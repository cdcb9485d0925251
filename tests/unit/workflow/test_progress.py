"""The last words of a run: why a job failed, and the command that goes on."""

import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from shardwise.records import missing
from shardwise.records.logs import explain
from shardwise.workflow import progress
from shardwise.workflow.progress import Failure, Follower, Listener, rerun_command, shard_failures

from tests import factories

WORKFLOW = SimpleNamespace(dryrun=False, output_settings=SimpleNamespace(quiet=None))
OWN = "2026-01-02 03:04:05,678 {} {}\n"
SLURM = "SLURM-job '12' failed, SLURM status is: 'TIMEOUT'. Detailed failure reason unavailable."


@pytest.mark.parametrize(
    ("log", "scheduler", "reason"),
    [
        (OWN.format("INFO", "on n1") + OWN.format("ERROR", "bad input"), None, "bad input"),
        (OWN.format("ERROR", "old") + OWN.format("ERROR", "new"), None, "new"),
        (OWN.format("INFO", "on n1"), SLURM, "the scheduler says TIMEOUT"),
        (
            OWN.format("ERROR", "ended by SIGTERM"),
            SLURM,
            "the scheduler says TIMEOUT; ended by SIGTERM",
        ),
        (OWN.format("INFO", "on n1"), None, "it left no error in its log"),
        ("Traceback:\nImportError: no numpy\n", None, "ImportError: no numpy"),
        (None, None, "it left no error in its log"),
    ],
)
def test_a_reason_is_the_jobs_own_words_and_the_schedulers(tmp_path, log, scheduler, reason):
    """The last error of the log, after what the scheduler says where it ended the job."""
    path = tmp_path / "job.log"
    if log is not None:
        path.write_text(log)
    assert explain(path, scheduler).startswith(reason)


@pytest.mark.parametrize(
    ("typed", "again"),
    [
        (["snakemake", "-n"], "snakemake -n"),
        (["snakemake", "--forceall", "--cores", "2"], "snakemake --cores 2"),
        (["snakemake", "-R", "multiply", "shard", "-k"], "snakemake -k"),
        (["snakemake", "--configfile", "my file.yaml"], "snakemake --configfile 'my file.yaml'"),
        (["/p/snakemake/__main__.py", "-s", "S", "-F"], f"{sys.executable} -P -m snakemake -s S"),
    ],
)
def test_the_rerun_is_the_same_command_without_force(typed: list[str], again: str) -> None:
    """What would compute finished work again is left out; names are quoted."""
    assert rerun_command(typed, "/a b") == f"cd '/a b' && {again}"


def test_a_job_for_all_shows_counts_and_notes(tmp_path, capsys, monkeypatch):
    """The newest count and every note, once; what shards say is left to the end."""
    monkeypatch.setattr(progress, "_FOLLOW_SECONDS", 3600)  # it looks when the test says so
    log = tmp_path / "pool.log"
    follower = Follower(log)
    assert follower._look() == ""  # there is no log yet
    text = (
        OWN.format("INFO", "1 of 9 shards done, 8 waiting")
        + OWN.format("WARNING", "shard 00002: busy; try 2 of 3 follows")
        + OWN.format("WARNING", "Slurm does not answer")
        + OWN.format("INFO", "3 of 9 shards done, 6 waiting")
    )
    log.write_text(text + "2026-01-02 03:04:05,678 INFO 4 of 9 sha")
    assert follower._look() == "3 of 9 shards done, 6 waiting"
    assert follower._look() == ""
    log.write_text(OWN.format("INFO", "5 of 9 shards done"))  # of a second try
    assert follower._look() == "5 of 9 shards done"
    follower.end()
    assert capsys.readouterr().err == "shardwise: multiply: Slurm does not answer\n"


def test_the_log_of_the_night_before_says_nothing_of_this_one(tmp_path, capsys, monkeypatch):
    """A job for all that waits in the queue, or never starts, is not taken for its forerunner."""
    monkeypatch.setattr(progress, "_FOLLOW_SECONDS", 3600)
    log = tmp_path / "pool.log"
    log.write_text(
        OWN.format("INFO", "3 of 9 shards done, 6 waiting")
        + OWN.format("WARNING", "a device is left out")
        + OWN.format("ERROR", "shard 00002: it failed (log: results/logs/2.log)")
    )
    run = SimpleNamespace(dispatch="pool", plan=SimpleNamespace(shards={}))
    listener = Listener(WORKFLOW, run)
    monkeypatch.setattr(missing, "list_missing", lambda plan: [])

    def happens(name: str, **facts: object) -> None:
        record = logging.makeLogRecord({"event": SimpleNamespace(value=name), **facts})
        listener.emit(record)

    happens("job_info", jobid=1, rule_name="pool", wildcards=None, log=[str(log)])
    happens("job_error", jobid=1, rule_name="pool", log=[str(log)], rule_msg=None)
    (failure,) = listener._failures()
    assert failure.name == "pool"
    assert failure.reason.startswith("it left no error in its log")
    assert "a device is left out" not in capsys.readouterr().err


def test_the_shards_that_a_job_for_all_names(tmp_path: Path) -> None:
    """Each with its reason and its own log; where none is named, the job itself has failed."""
    log = tmp_path / "mpi.log"
    assert shard_failures(log) == []
    log.write_text(
        OWN.format("WARNING", "shard 00002: it (a function) failed; it is not tried again")
        + OWN.format("ERROR", "shard 00002: it (a function) failed (log: results/logs/2.log)")
        + OWN.format("ERROR", "of 9 shards 1 failed; 8 are whole")
    )
    assert shard_failures(log) == [
        Failure("multiply 00002", "it (a function) failed", "results/logs/2.log")
    ]


@pytest.mark.parametrize(("seconds", "told"), [(5, True), (-5, False), (None, False)])
def test_only_a_page_of_this_run_is_named(tmp_path, capsys, seconds, told):
    """After a failure the page is named where it was written since the run began."""
    made = factories.plan(tmp_path, factories.stack((2, 3, 3)), shards=1)
    run = SimpleNamespace(
        dispatch="jobs", plan=made, results=made.results, reduce={"statistics": ["sum"]},
        began=True, succeeded=False, interrupted=False,
    )  # fmt: skip
    listener = Listener(WORKFLOW, run)
    if seconds is not None:
        run.results.report.touch()
        os.utime(run.results.report, (listener._began + seconds,) * 2)
    listener.last_words()
    said = capsys.readouterr().err
    assert "not finished: 0 of 1 shards" in said
    assert ("The page on it" in said) == told
