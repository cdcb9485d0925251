"""What we add to the Slurm plugin: jobs of unknown state, and why Slurm refused or ended one."""

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
from shardwise.files.paths import Results
from shardwise.records import failures
from shardwise.workflow.slurm_executor import none_if_unheard, noting_failures


def test_a_silent_slurm_says_nothing_of_any_job(caplog) -> None:
    """Each job counts as running, and an outage is logged once; the plugin alone would drop all."""
    answers = iter([({"1": "FAILED"}, 0.1), (None, None), (None, None), ({}, 0.2), (None, None)])

    async def ask(command: str, logger: object) -> tuple:
        return next(answers)

    wrapped = none_if_unheard(ask)
    with caplog.at_level(logging.WARNING):
        found = [asyncio.run(wrapped("squeue", None)) for _ in range(5)]
    assert found == [({"1": "FAILED"}, 0.1), ({}, 0.0), ({}, 0.0), ({}, 0.2), ({}, 0.0)]
    assert caplog.messages == ["shardwise: Slurm does not answer; asking again"] * 2


FAILED = "SLURM sbatch failed. The error message was '{}'.\n    sbatch call:\n        sbatch x\n"
RAISED = (
    "Job submission failed with exception: SLURM job submission failed. The error message was {}"
)
ENDED = "SLURM-job '12' failed, SLURM status is: '{}'. Detailed failure reason unavailable."
ACCOUNT = "sbatch: error: Batch job submission failed: Invalid account"
BUSY = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"


@pytest.mark.parametrize(("number", "message", "words", "code"), [
    (None, FAILED.format(ACCOUNT), "Batch job submission failed: Invalid account; change", 2),
    (None, RAISED.format(f"sbatch: error: \x1b[2J\n{ACCOUNT}"), "\\x1b[2J", 2),
    (None, FAILED.format(BUSY), "Slurm temporarily unable to accept job", 75),
    ("7", ENDED.format("FAILED"), None, None),
    ("7", ENDED.format("TIMEOUT"), "the scheduler says TIMEOUT", 75),
])  # fmt: skip
def test_what_slurm_says_of_a_job_is_its_failure(tmp_path: Path, number, message, words, code):
    """Under our name of its rule; if a retry is of no use, with the code of bad input."""
    results, told = Results(tmp_path), []
    run = SimpleNamespace(results=results, stages={"two_shard": "shard"})
    wildcards = {"shard": "00007", "key": "a" * 12}
    job = SimpleNamespace(rule=SimpleNamespace(name="two_shard"), wildcards_dict=wildcards)
    info = SimpleNamespace(external_jobid=number, job=job)
    noting_failures(run, lambda self, info, msg: told.append(msg))(None, info, message)
    failure = failures.read(results.failure(f"copy-00007-{'a' * 12}"))
    assert (failure and failure.code) == code
    assert words is None or words in failure.reason
    assert told == [message]
