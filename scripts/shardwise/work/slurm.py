"""What the project asks of Slurm itself: arrays, living jobs; Snakemake's plugin does the rest."""

import os
import re
import time
from collections.abc import Sequence

from shardwise.errors import InputError, TryAgain
from shardwise.work import schedulers
from shardwise.work.schedulers import call

_WRONG = re.compile(
    r"invalid|unrecognized|unknown|not permitted|node configuration is not available", re.IGNORECASE
)


def verify(words: Sequence[str]) -> None:
    """Have sbatch check what a job asks for; InputError if this cluster never has it."""
    try:
        call("sbatch", *words, "--test-only", "--output=/dev/null", "--wrap=true")
    except InputError as error:
        if _WRONG.search(str(error)):  # other errors concern this moment only
            raise


def end_of_job() -> float | None:
    """When the job of this process is ended, in Unix time; None if Slurm does not say."""
    # The partition may have its own limit: Slurm knows which one applies.
    try:
        own = os.environ["SLURM_JOB_ID"]
        if own == os.environ.get("SLURM_ARRAY_JOB_ID"):  # this means all tasks, but one has it
            own = f"{own}_{os.environ['SLURM_ARRAY_TASK_ID']}"
        end = call("squeue", "--noheader", "--format=%e", f"--jobs={own}").split()
        return time.mktime(time.strptime(end[0], "%Y-%m-%dT%H:%M:%S"))
    except (TryAgain, InputError, LookupError, ValueError, OverflowError):
        return None  # N/A where there is no limit


class Slurm:
    """Slurm's arrays. To support another scheduler, add a class like this to `array.SITES`.

    The command ``client`` exists if this machine can reach the scheduler. Methods that ask it raise
    TryAgain if it does not answer.
    """

    client = "squeue"
    refusal = staticmethod(schedulers.refusal)

    def most_tasks(self) -> int:
        """The most tasks of an array."""
        settings = call("scontrol", "show", "config")
        sizes = re.findall(r"\b(?:MaxArraySize|max_array_tasks)\s*=\s*(\d+)", settings)
        return max(1, min(map(int, sizes), default=1001) - 1)  # indices count from 1

    def array(
        self, name: str, tasks: int, limit: int | None, words: Sequence[str], script: str
    ) -> list[str]:
        """The command that submits an array, prints its number, and waits for its end.

        Its exit code is the worst of the tasks', each of which asks for ``words``.
        """
        own = ["--parsable", "--wait", f"--job-name={name}", f"--comment={name}"]
        own.append(f"--array=1-{tasks}" + (f"%{limit}" if limit else ""))
        return ["sbatch", *words, *own, "--output=/dev/null", "--error=/dev/null", script]

    def cancel(self, name: str) -> list[str]:
        """The command that cancels all jobs of a name."""
        return ["scancel", f"--name={name}"]

    def living(self, names: Sequence[str]) -> list[str]:
        """The numbers of the jobs with these names that still wait or work."""
        line = f"--name={','.join(names)}"
        return call("squeue", "--all", "--noheader", "--format=%i", line).splitlines()

    def stuck(self, name: str) -> str:
        """Why no task of a job will ever end, if the scheduler waits for it; empty if one may."""
        return ""  # it ends the tasks of a lost node itself

    def see(self, numbers: Sequence[str]) -> tuple[str, str]:
        """The commands that show a user these jobs, and that cancel them."""
        arrays = list(dict.fromkeys(number.partition("_")[0] for number in numbers))
        return f"squeue -j {','.join(arrays)}", f"scancel {' '.join(arrays)}"
