"""What the project asks of Grid Engine: arrays, and the jobs in its queue."""

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from shardwise.errors import InputError, TryAgain
from shardwise.work import schedulers

call = schedulers.call
_ENDS = {37: "it exceeded its limit of run time or memory", 100: "deleted or killed"}


@dataclass(frozen=True)
class Job:
    """A job, or some tasks of an array, in a state such as ``qw``; ``silent`` as its host is."""

    number: str
    name: str
    state: str
    host: str = ""
    silent: bool = False


def how_it_ended(number: str) -> str:
    """How a job that left no end mark ended, by its last accounting record: job numbers recur."""
    text = ""
    with suppress(InputError, TryAgain):  # no accounting here, or a slow one
        text = call("qacct", "-j", number).rpartition("=" * 20)[2]
    found = dict(re.findall(r"^(failed|exit_status) +(\d+\b.*?) *$", text, re.MULTILINE))
    failed, status = found.get("failed", "0"), int(found.get("exit_status", "0").split()[0])
    code = int(failed.split()[0])
    words = [f"{_ENDS.get(code, 'it failed')} (failed {' '.join(failed.split())})"] if code else []
    words += [f"killed by signal {status - 128}"] if status > 128 else []
    return ", ".join(words or ["killed or deleted"]) + f" (see: qacct -j {number})"


def why_it_cannot_start(number: str) -> str:
    """Why a job is in an error state."""
    with suppress(InputError, TryAgain):
        told = re.findall(r"^error reason +\d+: +(.*)$", call("qstat", "-j", number), re.MULTILINE)
        if told:
            return str(told[-1].strip())
    return f"see: qstat -j {number}"


def submission(name: str, output: str) -> list[str]:
    """The first words of every submission."""
    words = ["qsub", "-terse", "-cwd", "-b", "n", "-r", "n", "-S", "/bin/bash", "-m", "n"]
    exported = ",".join(sorted(key for key in os.environ if key.startswith("SHARDWISE_")))
    return [*words, "-j", "y", "-o", output, "-N", name, *(["-v", exported] if exported else [])]


def queue() -> list[Job]:
    """The jobs of all users in the queue; TryAgain if qstat does not print a whole list."""
    from xml.etree import ElementTree  # here: few processes ask

    try:
        root = ElementTree.fromstring(call("qstat", "-f", "-ne", "-u", "*", "-xml"))
    except InputError as error:
        raise TryAgain(str(error)) from None  # there is nothing for the user to correct
    except ElementTree.ParseError as error:
        raise TryAgain(f"qstat printed incomplete XML ({error})") from None
    if root.tag != "job_info":
        raise TryAgain(f"qstat printed XML of <{root.tag}>, which describes no job")
    jobs = []
    # Jobs that have no host yet are listed outside of the queues.
    for place in [*root.iter("Queue-List"), *root.iterfind("job_info")]:
        host = (place.findtext("name") or "").rpartition("@")[2]
        silent = "u" in (place.findtext("state") or "") and bool(host)
        for element in place.iterfind("job_list"):
            texts = (element.findtext(tag) or "" for tag in ("JB_job_number", "JB_name", "state"))
            jobs.append(Job(*texts, host, silent))
    return jobs


class GridEngine:
    """Grid Engine's arrays; `slurm.Slurm` says what each method does."""

    client = "qstat"

    def most_tasks(self) -> int:
        match = re.search(r"^max_aj_tasks\s+(\d+)", call("qconf", "-sconf"), re.MULTILINE)
        return (int(match[1]) if match else 0) or sys.maxsize  # 0: no limit

    def array(
        self, name: str, tasks: int, limit: int | None, words: Sequence[str], script: str
    ) -> list[str]:
        own = ["-sync", "y", "-t", f"1-{tasks}", *(["-tc", str(limit)] if limit else [])]
        return [*submission(name, "/dev/null"), *own, *words, script]

    def cancel(self, name: str) -> list[str]:
        return ["qdel", name]

    def living(self, names: Sequence[str]) -> list[str]:
        # A deleted job on a host that does not respond counts as gone: nothing more can be done.
        jobs = [job for job in queue() if not (job.silent and "d" in job.state)]
        return [job.number for job in jobs if job.name.startswith(tuple(names))]

    def stuck(self, name: str) -> str:
        jobs = []
        with suppress(TryAgain):
            jobs = [job for job in queue() if job.name == name]
        idle = [job for job in jobs if job.silent or {"E", "h"} & {*job.state}]
        return f"state {idle[0].state} {idle[0].host}".strip() if jobs and idle == jobs else ""

    def see(self, numbers: Sequence[str]) -> tuple[str, str]:
        return "qstat -u '*'", f"qdel {' '.join(dict.fromkeys(numbers))}"

    def run_time(self, words: Sequence[str]) -> float | None:
        """Seconds that a job with these words may run; None if unlimited, or a job of Slurm's."""
        # As 90 or 1:2:3; a part that is 0 may be left out, as in 1:: for an hour.
        limits = re.findall(r"\b[hs]_rt=(?:(\d*):(\d*):)?(\d*)", " ".join(words))
        seconds = [int(h or 0) * 3600 + int(m or 0) * 60 + int(s or 0) for h, m, s in limits]
        return min(filter(None, seconds), default=None)
