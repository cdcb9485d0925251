"""What the project asks of Slurm and Grid Engine: arrays, and the jobs in the queue.

An array is submitted, seen and cancelled by its name. Snakemake's plugins do the rest.
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence

from shardwise.errors import InputError, TryAgain
from shardwise.files.paths import Results
from shardwise.files.small import append_line
from shardwise.processes.contain import without_stray

CLIENTS = {"slurm": "squeue", "uge": "qstat"}  # commands that exist where it can be reached

UNHEARD_SECONDS = float(os.environ.get("SHARDWISE_UNHEARD_SECONDS", "60"))
"""How long a host is silent before its jobs are lost; after qmaster restarts, all are for 30 s."""

_AWAY = re.compile(
    r"unable to (send message to|contact)|timed? ?out|connection|zero bytes|communication|commlib"
    r"|transport endpoint|unexpected message|try again later|temporarily|failed receiving gdi"
    r"|gdi error|got (send|select|receive|read|write|no) ",
    re.IGNORECASE,
)
_FULL = re.compile(
    r"Submit\w*Job|MaxJobCount|maximum.* job count|job array spec|more than \d+ tasks",
    re.IGNORECASE,
)


class QueueFull(TryAgain):
    """The scheduler takes no more jobs now, or no array of so many tasks."""


def refusal(text: str, code: int) -> TryAgain | InputError:
    """The error for a command that failed with this text."""
    text = re.sub(r"\w+: error: ", "", text).removesuffix(" Exiting.")
    if code == 25 or _FULL.search(text):  # qsub's code
        return QueueFull(f"{text}; wait for jobs to end, or lower jobs (profile), array_tasks")
    return (TryAgain if _AWAY.search(text) else InputError)(text)


def need(program: str) -> None:
    """Raise InputError if this shell does not find a command of a scheduler."""
    if shutil.which(program) is None:
        raise InputError(
            f"{program} is not on PATH here: load the scheduler's module, or take --profile local"
        )


def call(*words: str, seconds: float = 30.0) -> str:
    """What a command of a scheduler prints; `refusal` makes the error if it fails."""
    need(words[0])
    try:
        done = subprocess.run(
            words, env=without_stray(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise TryAgain(f"{words[0]} did not answer within {seconds:g} s") from None
    if done.returncode:
        text = " ".join((done.stderr.strip() or done.stdout.strip()).split())
        raise refusal(text or f"{words[0]} ended with {done.returncode}", done.returncode)
    return done.stdout


def remember(results: Results, scheduler: str, name: str) -> None:
    """Note the name under which this run will submit jobs, so that a later run can find them."""
    results.root.mkdir(parents=True, exist_ok=True)
    append_line(results.runs, f"{scheduler}\t{name}\t{time.strftime('%Y-%m-%dT%H:%M:%S')}")


def cancel(scheduler: str, name: str) -> None:
    """Cancel all jobs of a name from a separate process."""
    # Repeatedly, as a submission may still be on its way.
    again = 'for pause in 0 2 5 10 30; do sleep $pause; "$@"; done'
    words = ["scancel", f"--name={name}"] if scheduler == "slurm" else ["qdel", name]
    subprocess.Popen(
        ["sh", "-c", again, "cancel", *words], start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def living(scheduler: str, names: Sequence[str], stuck: bool = True) -> list[str]:
    """The numbers of the jobs with these names that still wait or work; may raise TryAgain.

    Under Grid Engine the names are prefixes. Stuck jobs (see `queue`) count only with ``stuck``.
    """
    if scheduler == "slurm":
        line = f"--name={','.join(names)}"
        return call("squeue", "--all", "--noheader", "--format=%i", line).splitlines()
    jobs = queue().items()
    return [n for n, (name, own) in jobs if name.startswith(tuple(names)) and (stuck or not own)]


def submission(name: str, output: str) -> list[str]:
    """The first words of every submission."""
    words = ["qsub", "-terse", "-cwd", "-b", "n", "-r", "n", "-S", "/bin/bash", "-m", "n"]
    exported = ",".join(sorted(key for key in os.environ if key.startswith("SHARDWISE_")))
    return [*words, "-j", "y", "-o", output, "-N", name, *(["-v", exported] if exported else [])]


def queue() -> dict[str, tuple[str, bool]]:
    """The jobs of all users in Grid Engine's queue by number: name, and whether all of it is stuck.

    That is in an error state, or on a host that does not respond; it will not end by itself. One
    that was deleted there is left out. Raises TryAgain if qstat does not print a whole list.
    """
    from xml.etree import ElementTree  # here: few processes ask

    try:
        root = ElementTree.fromstring(call("qstat", "-f", "-ne", "-u", "*", "-xml"))
    except InputError as error:
        raise TryAgain(str(error)) from None  # there is nothing for the user to correct
    except ElementTree.ParseError as error:
        raise TryAgain(f"qstat printed incomplete XML ({error})") from None
    if root.tag != "job_info":
        raise TryAgain(f"qstat printed XML of <{root.tag}>, which describes no job")
    found = dict[str, tuple[str, bool]]()
    # Jobs that have no host yet are listed outside of the queues.
    for place in [*root.iter("Queue-List"), *root.iterfind("job_info")]:
        silent = "u" in (place.findtext("state") or "")
        for job in place.iterfind("job_list"):
            tags = "JB_job_number", "JB_name", "state"
            number, name, state = (job.findtext(tag) or "" for tag in tags)
            if not (silent and "d" in state):
                stuck = (silent or "E" in state) and found.get(number, ("", True))[1]
                found[number] = name, stuck
    return found
