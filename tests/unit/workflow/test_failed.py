"""Why a job has failed, by what its executor says of it, if it has left no failure itself."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from shardwise.files.paths import Results
from shardwise.records import failures
from shardwise.workflow.progress import noted
from shardwise.workflow.recipe import REFUSED, SAYS

PLUGIN = "SLURM sbatch failed. The error message was '{}'.\n    sbatch call:\n        sbatch x\n"
RAISED = (
    "Job submission failed with exception: SLURM job submission failed. The error message was {}"
)
ENDED = "SLURM-job '12' failed, SLURM status is: '{}'. Detailed failure reason unavailable."
ACCOUNT = "sbatch: error: Batch job submission failed: Invalid account"
BUSY = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"


@pytest.mark.parametrize(("said", "words", "code"), [
    (PLUGIN.format(ACCOUNT), "submission failed: Invalid account; change the block two_shard", 2),
    (RAISED.format(f"sbatch: error: \x1b[2J\n{ACCOUNT}"), "\\x1b[2J", 2),
    (PLUGIN.format(BUSY), "Slurm temporarily unable to accept job", 75),
    (f"Grid Engine {REFUSED}unknown queue", "accept the job: unknown queue; change the", 2),
    (ENDED.format("FAILED"), "it left no message", 75),
    (ENDED.format("TIMEOUT"), "the scheduler says TIMEOUT", 75),
    (f"{SAYS}killed", "the scheduler says killed", 75),
])  # fmt: skip
def test_what_a_scheduler_says_of_a_job_is_its_failure(tmp_path: Path, said, words, code):
    """Under our name of its rule; if a retry is of no use, with the code of bad input."""
    run = SimpleNamespace(
        results=Results(tmp_path),
        stages={"two_shard": "shard"},
        rule_for_all=None,
        plan=SimpleNamespace(key="k"),
    )
    wildcards = {"shard": "00007", "key": "a" * 12}
    job = SimpleNamespace(rule=SimpleNamespace(name="two_shard"), wildcards_dict=wildcards)
    failure = noted(run, job, f"{said}For further error details see the cluster/cloud log")
    assert failure == failures.read(run.results.failure(f"copy-00007-{'a' * 12}"))
    assert (failure.code, words in failure.reason) == (code, True)
    assert "further" not in failure.reason
    assert noted(run, job, ENDED.format("CANCELLED")) == failure, "the first word counts"
