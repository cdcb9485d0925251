"""The last words of a run: why a job failed, and the command that goes on."""

from pathlib import Path

import pytest
from shardwise.progress import explain, rerun_command

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
def test_a_reason_is_the_jobs_own_words_and_the_schedulers(
    tmp_path: Path, log: str | None, scheduler: str | None, reason: str
) -> None:
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
    ],
)
def test_the_rerun_is_the_same_command_without_force(typed: list[str], again: str) -> None:
    """What would compute finished work again is left out; names are quoted."""
    assert rerun_command(typed, "/a b") == f"cd '/a b' && {again}"
