"""What schedulers have in common: an array is submitted, seen and cancelled by its name."""

import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from shardwise.errors import InputError, TryAgain
from shardwise.files.paths import Results
from shardwise.files.small import append_line

JOB_NAME = re.compile(r"\w[\w.-]*", re.ASCII)
"""What the name of a job may look like: it becomes a word of a command."""

QUERY_SECONDS = 30.0

UNHEARD_SECONDS = float(os.environ.get("SHARDWISE_UNHEARD_SECONDS", "60"))
"""How long a host has to be silent before its jobs count as lost.

After a restart of qmaster all hosts are silent for half a minute. (Grid Engine itself calls a host
unheard only after five minutes, or after what the site has set as max_unheard.)
"""


class QueueFull(TryAgain):
    """The job limit of the cluster, for this user or for all, is reached."""


class Scheduler(Protocol):
    """What is needed of a scheduler. To support another, add a class like this to `array.SITES`.

    ``title`` is for messages; the command ``client`` exists if this machine can reach the
    scheduler. Methods that ask it raise TryAgain if it does not answer, but for `stuck`.
    """

    title: str
    client: str

    def most_tasks(self) -> int:
        """The most tasks of an array; InputError if this scheduler takes no arrays."""

    def array(
        self, name: str, tasks: int, limit: int | None, words: Sequence[str], script: str
    ) -> list[str]:
        """The command that submits an array, prints its number, and waits for its end.

        Its exit code is the worst of the tasks'. At most ``limit`` tasks run at once (None: as many
        as the scheduler allows); each asks for ``words``.
        """

    def refusal(self, text: str, code: int) -> Exception:
        """The error for a command that failed with this text: QueueFull, TryAgain or InputError."""

    def cancel(self, name: str) -> list[str]:
        """The command that cancels all jobs of a name."""

    def living(self, names: Sequence[str]) -> list[str]:
        """The numbers of the jobs with these names that still wait or work."""

    def stuck(self, name: str) -> str:
        """Why none of a job's tasks runs or will start; empty if one may, or if that is unknown."""

    def see(self, numbers: Sequence[str]) -> tuple[str, str]:
        """The commands that show a user these jobs, and that cancel them."""

    def run_time(self, words: Sequence[str]) -> float | None:
        """Seconds that a job with these words may run; None if unlimited, or if the job can ask."""


def ask(
    words: Sequence[str], refusal: Callable[[str, int], Exception], advice: str,
    seconds: float = QUERY_SECONDS, env: Mapping[str, str] | None = None,
) -> str:  # fmt: skip
    """What a command of a scheduler prints.

    ``refusal`` makes the error to raise from the output and the exit code of a failed command.
    Raises TryAgain if it does not answer in time; InputError, with the advice, if there is no
    such command.
    """
    try:
        done = subprocess.run(
            words, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise TryAgain(f"{words[0]} did not answer within {seconds:g} s") from None
    except FileNotFoundError:
        raise InputError(f"{words[0]} is not on PATH; {advice}") from None
    if done.returncode:
        text = " ".join((done.stderr.strip() or done.stdout.strip()).split())
        raise refusal(text or f"{words[0]} ended with {done.returncode}", done.returncode)
    return done.stdout


def cancel_detached(words: Sequence[str]) -> None:
    """Cancel jobs from a separate process, as snakemake gives this one little time.

    That process cancels repeatedly, as a submission that was cut off may still arrive.
    """
    again = 'for pause in 0 2 5 10 30; do sleep $pause; "$@"; done'
    subprocess.Popen(
        ["sh", "-c", again, "cancel", *words], start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def remember(results: Results, scheduler: str, name: str) -> None:
    """Note the name under which this run will submit jobs, so that a later run can find them."""
    results.root.mkdir(parents=True, exist_ok=True)
    append_line(results.runs, f"{scheduler}\t{name}\t{time.strftime('%Y-%m-%dT%H:%M:%S')}")
