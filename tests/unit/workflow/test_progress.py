"""What a run says of its failures, by cause, and the command that goes on."""

import logging
import sys
from functools import partial
from types import SimpleNamespace

import pytest
from shardwise.errors import InputError, TryAgain
from shardwise.records import failures
from shardwise.records.store import Store
from shardwise.workflow.progress import Listener, of_slurm, rerun_command
from shardwise.workflow.run import Run

from tests import factories


@pytest.mark.parametrize(("typed", "again"), [
    (["snakemake", "--configfile", "my file.yaml"], "snakemake --configfile 'my file.yaml'"),
    (["/p/snakemake/__main__.py", "-s", "S"], f"{sys.executable} -P -m snakemake -s S"),
])  # fmt: skip
def test_the_rerun_is_the_same_command(typed: list[str], again: str) -> None:
    """Names are quoted."""
    assert rerun_command(typed, "/a b") == f"cd '/a b' && {again}"


OWN, OTHER = "a" * 12, "b" * 12


@pytest.mark.parametrize(("dispatch", "of", "noted", "words", "more"), [
    ("pool", "00001", OWN, "failed: multiply 00001: input: matrix 3 holds NaN", True),
    ("pool", "multiply", OWN, "failed: multiply: input: matrix 3 holds NaN", False),
    ("jobs", "00001", OWN, "failed: multiply 00001: input: matrix 3 holds NaN", False),
    ("pool", "00001", OTHER, "failed: multiply: it left no message: killed, lost with", True),
    ("jobs", "00001", None, "failed: multiply 00001: it left no message: killed", True),
])  # fmt: skip
def test_a_killed_job_is_told_from_one_that_failed(
    tmp_path, monkeypatch, capsys, dispatch, of, noted, words, more
):
    """A job that failed in this run has left a failure file; files of earlier runs do not count.

    Another try follows and is announced, unless all that the job does would fail again.
    """
    made = factories.plan(tmp_path, factories.stack((4, 2, 2)), shards=2)
    if noted:
        monkeypatch.setenv(failures.RUN, noted)
        Store(made).fail(of, InputError("input: matrix 3 holds NaN"))
    monkeypatch.setenv(failures.RUN, OWN)
    run = SimpleNamespace(plan=made, results=made.results, store=Store(made),
                          stages={"multiply": "multiply", "pool": "pool"},
                          rule_for_all={"jobs": None}.get(dispatch, dispatch))  # fmt: skip
    run.failures_of = partial(Run.failures_of, run)
    rule, wildcards = ("pool", {}) if dispatch == "pool" else ("multiply", {"shard": "00001"})
    job = SimpleNamespace(rule=SimpleNamespace(name=rule), wildcards_dict=wildcards, attempt=1,
                          restart_times=2)  # fmt: skip
    workflow = SimpleNamespace(
        dryrun=False, workdir_init="/", overwrite_workdir=None,
        scheduler=SimpleNamespace(running=[job]),
        dag=SimpleNamespace(needrun_jobs=lambda: [job], jobid=lambda job: 1),
    )  # fmt: skip
    listener = Listener(workflow, run)
    listener.began = True
    event = {"event": SimpleNamespace(value="job_error"), "jobid": 1, "rule_msg": None}
    job.rule.name, own = "of_another_module", rule
    listener.emit(logging.makeLogRecord(event))
    assert not capsys.readouterr().err
    job.rule.name = own
    listener.emit(logging.makeLogRecord(event))
    if of == "multiply":
        made.results.report.mkdir()
    listener.last_words()
    said = capsys.readouterr().err
    unwritten = f"shardwise: report not written ({made.results.report}): " in said
    assert unwritten == (f"The page on this run: {made.results.report}" not in said)
    assert unwritten == (of == "multiply")
    assert "not finished: 0 of 2 shards have products; 2 missing" in said
    assert words in said
    assert made.results.failure(f"multiply-{made.key}").exists() == ("multiply: " in words)
    assert ("left no message" in said) == ("left no message" in words)
    assert (job.attempt, said.count("; try 2 of 3 follows\n")) == ((1, 1) if more else (3, 0))


PLUGIN = "SLURM sbatch failed. The error message was '{}'.\n    sbatch call:\n        sbatch x\n"
RAISED = (
    "Job submission failed with exception: SLURM job submission failed. The error message was {}"
)
ENDED = "SLURM-job '12' failed, SLURM status is: '{}'. Detailed failure reason unavailable."
ACCOUNT = "sbatch: error: Batch job submission failed: Invalid account"
QUEUE = "sbatch: error: invalid partition specified: q\nsbatch: error: Batch job submission failed"
BUSY = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"


@pytest.mark.parametrize(("said", "words", "code"), [
    (PLUGIN.format(ACCOUNT), "submission failed: Invalid account; change the block two_shard", 2),
    (RAISED.format(f"sbatch: error: \x1b[2J\n{ACCOUNT}"), "\\x1b[2J", 2),
    (PLUGIN.format(QUEUE), ": invalid partition specified: q Batch job submission failed;", 2),
    (PLUGIN.format(BUSY), "Slurm temporarily unable to accept job", 75),
    (ENDED.format("FAILED"), "it left no message: killed, lost with its node, or never", 75),
    (ENDED.format("TIMEOUT"), "the scheduler says TIMEOUT", 75),
])  # fmt: skip
def test_what_slurm_says_of_a_job_is_an_error(said, words, code):
    """If a retry is of no use, it has the code of bad input."""
    error = of_slurm(f"{said}For further error details see the cluster/cloud log", "two_shard")
    assert (error.exit_code, words in str(error)) == (code, True)
    assert "further" not in str(error)


def test_what_a_scheduler_says_of_a_job_is_its_failure_if_it_left_none(tmp_path):
    """Under our name of its rule; the first word counts. Those of other modules are not ours."""
    made = factories.plan(tmp_path, factories.stack((4, 2, 2)), shards=2)
    run = SimpleNamespace(stages={"two_shard": "shard"}, rule_for_all=None, store=Store(made))
    rule = SimpleNamespace(name="two_shard")
    job = SimpleNamespace(rule=rule, wildcards_dict={"shard": "00001"}, attempt=2)
    told = Run.failures_of(run, job, TryAgain("the scheduler says TIMEOUT"))
    name = f"copy-{made.shards['00001'].input_name}"
    assert told == ([failure := failures.read(made.results.failure(name))], True)
    assert (failure.code, failure.reason, failure.attempt) == (75, "the scheduler says TIMEOUT", 2)
    assert Run.failures_of(run, job, TryAgain("the scheduler says CANCELLED")) == told
    rule.name = "one_shard"
    assert Run.failures_of(run, job, TryAgain("refused")) == ([], False)
