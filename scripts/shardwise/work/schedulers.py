"""What schedulers have in common: an array is submitted, seen and cancelled by its name."""

import os
import re
import subprocess
import time
from collections.abc import Sequence

from shardwise.errors import InputError, TryAgain
from shardwise.files.paths import Results
from shardwise.files.small import append_line
from shardwise.processes.environment import without_stray

JOB_NAME = re.compile(r"\w[\w.-]*", re.ASCII)  # it becomes a word of a command

UNHEARD_SECONDS = float(os.environ.get("SHARDWISE_UNHEARD_SECONDS", "60"))
"""How long a host is silent before its jobs are lost; after qmaster restarts, all are for 30 s."""


_FULL = re.compile(
    r"Submit\w*Job|temporarily unable to accept|resource temporarily unavailable"
    r"|MaxJobCount|maximum.* job count",
    re.IGNORECASE,
)
_FULL_CODE = 25  # of qsub
_AWAY = re.compile(
    r"unable to (send message to|contact)|timed? ?out|connection|zero bytes|communication|commlib"
    r"|transport endpoint|unexpected message|try again later|temporarily|failed receiving gdi"
    r"|gdi error|got (send|select|receive|read|write|no) ",
    re.IGNORECASE,
)


class QueueFull(TryAgain):
    """The job limit of the cluster, for this user or for all, is reached."""


def refusal(text: str, code: int) -> Exception:
    """The error for a command that failed with this text: QueueFull, TryAgain or InputError."""
    text = re.sub(r"\w+: error: ", "", text).removesuffix(" Exiting.")
    if code == _FULL_CODE or _FULL.search(text):
        return QueueFull(text)
    return (TryAgain if _AWAY.search(text) else InputError)(text)


def call(*words: str, seconds: float = 30.0) -> str:
    """What a command of a scheduler prints; `refusal` makes the error if it fails.

    Raises TryAgain if it does not answer in time, InputError if there is no such command.
    """
    try:
        done = subprocess.run(
            words, env=without_stray(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise TryAgain(f"{words[0]} did not answer within {seconds:g} s") from None
    except FileNotFoundError:
        raise InputError(f"{words[0]} is not on PATH; load the scheduler first") from None
    if done.returncode:
        text = " ".join((done.stderr.strip() or done.stdout.strip()).split())
        raise refusal(text or f"{words[0]} ended with {done.returncode}", done.returncode)
    return done.stdout


def cancel_detached(words: Sequence[str]) -> None:
    """Cancel jobs from a separate process, repeatedly: a submission may still be on its way."""
    again = 'for pause in 0 2 5 10 30; do sleep $pause; "$@"; done'
    subprocess.Popen(
        ["sh", "-c", again, "cancel", *words], start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def remember(results: Results, scheduler: str, name: str) -> None:
    """Note the name under which this run will submit jobs, so that a later run can find them."""
    results.root.mkdir(parents=True, exist_ok=True)
    append_line(results.runs, f"{scheduler}\t{name}\t{time.strftime('%Y-%m-%dT%H:%M:%S')}")
