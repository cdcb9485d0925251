"""What the Slurm plugin leaves out: jobs of which it learns nothing, and why sbatch refused one."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from shardwise.files.paths import Results
from shardwise.plan import plan as plans
from shardwise.records import failures
from shardwise.workflow.slurm_executor import keeping, long_if_untold, noting_refusals


class Executor:
    """Snakemake's Slurm executor in small, wrapped: a dictionary of states, or no answer."""

    def __init__(self) -> None:
        self.answer: dict[str, str] | None = {}
        self.ended: list[str] = []

    def report_job_success(self, job: list[str]) -> None:
        """As the plugin's."""
        self.ended.append(job[0])

    def report_job_error(self, job: list[str], msg: str = "") -> None:
        """As the plugin's."""
        self.ended.append(f"{job[0]} {msg}")

    @keeping
    async def check_active_jobs(self, active_jobs: list[list[str]]) -> AsyncIterator[list[str]]:
        """As the plugin's: without an answer it yields none."""
        for job in active_jobs if self.answer is not None else ():
            state = self.answer.get(job[0], "RUNNING")
            if state == "COMPLETED":
                self.report_job_success(job)
            elif state == "FAILED":
                self.report_job_error(job, msg="failed")
            else:
                yield job


def left(executor: Executor, jobs: list[list[str]]) -> list[list[str]]:
    """The jobs that are asked for next time."""

    async def collected() -> list[list[str]]:
        return [job async for job in executor.check_active_jobs(jobs)]

    return asyncio.run(collected())


def test_jobs_are_kept_until_somebody_answers(caplog) -> None:
    """Jobs that end are reported once, others stay, and an outage is told of once."""
    jobs = [["1"], ["2"], ["3"]]
    executor = Executor()
    with caplog.at_level(logging.WARNING):
        executor.answer = {"1": "COMPLETED"}
        jobs = left(executor, jobs)
        assert jobs == [["2"], ["3"]]
        assert not caplog.messages
        executor.answer = None
        for _ in range(3):
            jobs = left(executor, jobs)
            assert jobs == [["2"], ["3"]]
        (told,) = caplog.messages
        assert told == "shardwise: Slurm does not answer; asking again about 2 jobs"
        executor.answer = {"2": "FAILED"}
        jobs = left(executor, jobs)
        executor.answer = {"3": "COMPLETED"}
        assert left(executor, jobs) == []
    assert executor.ended == ["1", "2 failed", "3"]
    assert len(caplog.messages) == 1


def test_squeue_is_asked_where_slurm_does_not_say_how_long_it_remembers() -> None:
    """The plugin would ask sacct, which without accounting knows nothing, for ever."""
    assert [long_if_untold(lambda age=age: age)() for age in (None, 300)] == [math.inf, 300]


FAILED = "SLURM sbatch failed. The error message was '{}'.\n    sbatch call:\n        sbatch x\n"
RAISED = (
    "Job submission failed with exception: SLURM job submission failed. The error message was {}"
)
ACCOUNT = "sbatch: error: Batch job submission failed: Invalid account"
BUSY = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"


@pytest.mark.parametrize(
    ("number", "message", "words", "code"),
    [
        (None, FAILED.format(ACCOUNT), "Batch job submission failed: Invalid account; change", 2),
        (None, RAISED.format(f"{ACCOUNT}\n"), "Invalid account; change the block multiply", 2),
        (None, FAILED.format(f"sbatch: error: \x1b[2J\n{ACCOUNT}"), "\\x1b[2J", 2),
        (None, FAILED.format(BUSY), "Slurm temporarily unable to accept job", 75),
        (None, None, None, None),
        ("7", FAILED.format(ACCOUNT), None, None),
    ],
)
def test_why_sbatch_refused_a_job_is_its_failure(tmp_path: Path, number, message, words, code):
    """With the code of bad input, and no retry, where that is of no use; else nothing is noted."""
    plan, told = plans.sample(Results(tmp_path)), []
    wildcards = {"shard": "00007", "key": "a" * 12}
    rule = SimpleNamespace(name="multiply", restart_times=2)
    job = SimpleNamespace(rule=rule, wildcards_dict=wildcards, attempt=1)
    info = SimpleNamespace(external_jobid=number, job=job)
    noting_refusals(plan, lambda self, info, msg: told.append(msg))(None, info, message)
    failure = failures.read(plan.results.failure(f"00007-{'a' * 12}"))
    assert (failure and failure.code) == code
    assert words is None or words in failure.reason
    assert job.attempt == (3 if code == 2 else 1)
    assert told == [message]
