"""One Snakemake job a shard: what a new run owes to the jobs of an earlier one.

When Snakemake is killed, the jobs that it submitted live on. A second job for the same shard would
cost twice, and Snakemake would remove a file that the first has just finished. So a run that finds
living jobs of an earlier run on its results folder does not start: it says how to wait for them, or
how to cancel them.
"""

import logging
import shutil
import subprocess
import sys
import time

from shardwise.paths import Results

log = logging.getLogger("snakemake.logging")  # it prints messages as they are: no %s

_QUERY_SECONDS = 30


def remember(results: Results, scheduler: str, name: str) -> None:
    """Note the name under which this run submits its jobs."""
    results.root.mkdir(parents=True, exist_ok=True)
    with open(results.runs, "a", encoding="utf-8") as file:
        file.write(f"{scheduler}\t{name}\t{time.strftime('%Y-%m-%dT%H:%M:%S')}\n")


def refuse_beside_living(results: Results) -> None:
    """End with 75 where jobs of an earlier run still wait or work on these results."""
    names = _names(results)
    if not names or not shutil.which("squeue"):
        return
    command = ["squeue", "--noheader", "--format=%i", f"--name={','.join(names)}"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=_QUERY_SECONDS, check=True
        )
    except (subprocess.SubprocessError, OSError) as error:
        log.error(f"Slurm does not say whether jobs of an earlier run live ({error}); try again")
        sys.exit(75)
    living = answer.stdout.split()
    if living:
        log.error(
            f"{len(living)} jobs of an earlier run still wait or work on {results.root}. "
            f"Let them finish (see: squeue -j {','.join(living)}), or cancel them "
            f"(scancel {' '.join(living)}); then run the same command again."
        )
        sys.exit(75)


def _names(results: Results) -> list[str]:
    try:
        lines = results.runs.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return [line.split("\t")[1] for line in lines if line.startswith("slurm\t")]
