"""What the project knows of Grid Engine: words for qsub, and what qstat and qacct answer.

Univa and Altair Grid Engine, Son of Grid Engine and Open Grid Scheduler share all of it. Those
functions that ask it raise `TryAgain` if it does not answer, which is never a reason to give a
job up. Only the standard library: the profile's scripts import this once for every job.
"""

import contextlib
import os
import re
import shlex
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwise.devices.leases import user_name
from shardwise.dispatch.schedulers.common import (
    Array,
    Fate,
    QueueFull,
    Tasks,
    ask,
    numbers,
    prefix,
    ranges,
)
from shardwise.errors import InputError, TryAgain

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

QUERY_SECONDS = 30
ACCOUNTING_SECONDS = 10
VERIFY_SECONDS = 10

_RECORDS_AT_ONCE = 20  # tasks of which the accounting, a large file, is asked at one look
_WORDS = "uge_"  # resources whose names begin so hold words for qsub

_AWAY = re.compile(
    r"commlib|unable to (send message to|contact) qmaster|failed receiving gdi|gdi error"
    r"|got (send|select|receive|read|write|no) |timed? ?out|no connection|temporarily",
    re.IGNORECASE,
)
_FULL = 25
"""The exit code of qsub if the cluster has as many jobs as it allows, of one user or of all."""

_UNKNOWN = re.compile(r'unknown (resource|queue) "|does not exist|is not on PATH|invalid option')
"""What is wrong with the words for qsub themselves, whatever hosts there are."""

_REASONS = {37: "it passed its limit of run time or memory", 100: "deleted or killed"}


@dataclass(frozen=True)
class Job:
    """A job, or the tasks of an array that share a state, in the queue.

    `state` is in Grid Engine's letters, such as ``qw``, ``r``, ``dr`` or ``Eqw``; `hosts` is empty
    until the job starts; `tasks` is empty for a plain job, else as qstat writes it (``6-20:1``).
    """

    number: str
    name: str
    state: str
    hosts: tuple[str, ...] = ()
    tasks: str = ""


@dataclass(frozen=True)
class Queue:
    """Jobs at one moment, of this user or of all, and those of their hosts that are silent."""

    jobs: tuple[Job, ...]
    unheard: frozenset[str] = frozenset()

    def job(self, number: str) -> Job | None:
        """The job of a number, if it still waits or runs."""
        return next((job for job in self.jobs if job.number == number), None)

    def named(self, run: str) -> list[Job]:
        """The jobs of a run that still wait or run.

        A job that was deleted while its host is not heard of is as good as gone: nothing more can
        be done, and Grid Engine ends it when the host comes back.
        """
        return [
            job
            for job in self.jobs
            if job.name.startswith(prefix(run))
            and not ("d" in job.state and self.unheard.intersection(job.hosts))
        ]


@dataclass(frozen=True)
class AccountingRecord:
    """What the accounting says of a job that has ended."""

    failed: str
    exit_status: int

    @property
    def code(self) -> int:
        """The number at the begin of `failed`; 0 where Grid Engine had no part in the end."""
        return int(self.failed.split()[0])

    @property
    def well(self) -> bool:
        """Whether Grid Engine saw nothing wrong."""
        return not self.code and not self.exit_status


def job_name(run: str, properties: Mapping[str, Any], attempt: int) -> str:
    """A name that no other submission has, without what Grid Engine allows in no name."""
    parts = [properties["rule"], *properties["wildcards"].values()]
    parts += [str(attempt)] if attempt > 1 else []
    return prefix(run) + re.sub(r"[^A-Za-z0-9_.-]", "_", "-".join(parts))


def site_words(resources: Mapping[str, Any]) -> list[str]:
    """The words for qsub that the profile holds, in its resources ``uge_*``, filled in.

    Raises InputError if a placeholder is unknown, or the job has no value for it.
    """
    texts = {name: str(text) for name, text in resources.items() if name.startswith(_WORDS)}
    sources = {"ranks": ("tasks", 1), "seconds": ("runtime", 60), "mib": ("mem_mb", 1)}
    values = {
        name: int(resources[key]) * factor
        for name, (key, factor) in sources.items()
        if resources.get(key) is not None
    }
    # The memory of a slot is known once the number of slots is.
    first = _filled(texts, {**values, "mib_per_slot": 0})
    slots = _slots(first)
    if "mib" in values:
        values["mib_per_slot"] = -(-values["mib"] // slots)
    return _filled(texts, values)


def _filled(texts: Mapping[str, str], values: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for name in sorted(texts):
        try:
            words += shlex.split(texts[name].format_map(values))
        except (KeyError, ValueError, IndexError) as error:
            raise InputError(
                f"{name}: {texts[name]!r} in the profile cannot be filled in ({error}); this job "
                f"knows {', '.join(f'{{{value}}}' for value in values)}"
            ) from None
    return words


def _slots(words: list[str]) -> int:
    """The slots that the words ask for; of a range the least."""
    if "-pe" not in words:
        return 1
    match = re.match(r"\d+", "".join(words[words.index("-pe") + 2 :][:1]))
    return max(1, int(match[0])) if match else 1


def qsub_words(
    properties: Mapping[str, Any], name: str, output: str, exported: Iterable[str] = ()
) -> list[str]:
    """The words that submit a job; the script and its arguments follow them.

    ``properties`` are those of the job in its script, ``output`` takes what it prints, and
    ``exported`` are names of variables that it gets as they are here.
    """
    return [*_own_words(name, output, exported), *site_words(properties["resources"])]


def _own_words(name: str, output: str, exported: Iterable[str]) -> list[str]:
    words = ["qsub", "-terse", "-cwd", "-b", "n", "-r", "n", "-S", "/bin/bash"]
    words += ["-m", "n", "-j", "y", "-o", output, "-N", name]
    names = ",".join(sorted(exported))
    return words + (["-v", names] if names else [])


def listed(queue: Queue, runs: Iterable[str]) -> list[Tasks]:
    """The tasks of these dispatches in an answer of qstat."""
    return [
        Tasks(
            job.number,
            job.name,
            tuple(numbers(job.tasks)) if job.tasks else (),
            where=", ".join(job.hosts),
            trouble=f"it cannot start, state {job.state}" if "E" in job.state else "",
            held=not job.hosts and "h" in job.state,
            silent=bool(queue.unheard.intersection(job.hosts)),
        )
        for run in runs
        for job in queue.named(run)
    ]


def parse_queue(xml: str) -> Queue:
    """Read what ``qstat -f -ne -xml`` printed; else `TryAgain`: it was cut off, or is no qstat."""
    from xml.etree import ElementTree  # here: every job's script imports this module

    try:
        root = ElementTree.fromstring(xml)
    except ElementTree.ParseError as error:
        raise TryAgain(f"qstat printed incomplete XML ({error})") from None
    if root.tag != "job_info":
        raise TryAgain(f"qstat printed XML of <{root.tag}>, which describes no job")
    unheard, jobs = set(), {}
    for place in root.iter("Queue-List"):
        host = (place.findtext("name") or "").rpartition("@")[2]
        if "u" in (place.findtext("state") or ""):
            unheard.add(host)
        for element in place.iter("job_list"):
            _add(jobs, element, host)
    # Jobs without a place stand beside the list of queues.
    for element in root.iterfind("job_info/job_list"):
        _add(jobs, element)
    return Queue(tuple(jobs.values()), frozenset(unheard))


def _add(jobs: dict[tuple[str, ...], Job], element: "Element", *hosts: str) -> None:
    """Add a job; one that has slots on several hosts is listed at each of them."""
    number, tasks = element.findtext("JB_job_number") or "", element.findtext("tasks") or ""
    name, state = element.findtext("JB_name") or "", element.findtext("state") or ""
    listed_before = jobs.get((number, tasks, state))
    hosts = (*listed_before.hosts, *hosts) if listed_before else hosts
    jobs[number, tasks, state] = Job(number, name, state, hosts, tasks)


def parse_record(text: str, name: str) -> AccountingRecord | None:
    """The record of a job of this name in what ``qacct -j`` printed: numbers come again.

    A job on several hosts may have one record for each of them: the newest that failed, if any.
    """
    newest = None
    for block in re.split(r"^={20,}$", text, flags=re.MULTILINE):
        lines = (line.split(maxsplit=1) for line in block.splitlines())
        fields = {line[0]: line[1].strip() for line in lines if len(line) == 2}
        failed, status = (
            re.match(r"\d+", fields.get(name, "")) for name in ("failed", "exit_status")
        )
        if fields.get("jobname") != name or failed is None or status is None:
            continue  # another job, or a record that was cut off
        record = AccountingRecord(re.sub(r"\s+", " ", fields["failed"]), int(status[0]))
        if newest is None or newest.well or not record.well:
            newest = record
    return newest


def parse_error(text: str) -> str:
    """Why a job is in an error state, from what ``qstat -j`` printed."""
    reasons = re.findall(r"^error reason\s+\d+:\s+(?:\S+ \S+ \[\S+\]: )?(.*)$", text, re.MULTILINE)
    return reasons[-1].strip() if reasons else "no reason given; the site's staff can see its logs"


def describe(record: AccountingRecord) -> str:
    """How a job ended that left no mark of its end, in words."""
    signal = record.exit_status - 128
    words = []
    if record.code:
        words.append(f"{_REASONS.get(record.code, 'it failed')} (failed {record.failed})")
    if signal > 0:
        words.append(f"killed by signal {signal}")
    elif record.exit_status:
        words.append(f"exit status {record.exit_status}")
    return ", ".join(words) or (
        "it ended well, but the mark of its end has not arrived: is the disk of the working "
        "directory full, or not shared with the hosts?"
    )


def call(words: Sequence[str], seconds: float = QUERY_SECONDS) -> str:
    """Run a command of Grid Engine and return what it printed.

    Raises TryAgain if it does not answer in time, or says that it reaches no qmaster; QueueFull
    if qsub says that the cluster accepts no more jobs for now; InputError if it fails
    otherwise; with its own words.
    """
    advice = "load Grid Engine first, often by: source $SGE_ROOT/default/common/settings.sh"
    return ask(words, seconds, advice, partial(_refusal, words[0]))


def _refusal(command: str, text: str, code: int) -> Exception:
    text = text.removesuffix(" Exiting.")
    if command == "qsub" and code == _FULL:
        return QueueFull(text)
    return (TryAgain if _AWAY.search(text) else InputError)(text)


def verify(resources: Mapping[str, Any]) -> None:
    """Have qsub check the options of a job that asks for these resources, and submit nothing.

    What it says of hosts does not count: it knows none that is away, and no load such as mem_free.
    Raises InputError if it knows no such resource, queue, project or parallel environment;
    TryAgain if Grid Engine does not answer.
    """
    words = site_words(resources)
    try:
        call(["qsub", "-b", "y", *words, "-w", "v", "/bin/true"], VERIFY_SECONDS)
    except InputError as error:
        if _UNKNOWN.search(str(error)):
            raise InputError(f"{error}{_guilty(resources, str(error))}") from None


def _guilty(resources: Mapping[str, Any], answer: str) -> str:
    """The lines of the profile with the words that an error names."""
    named = re.findall(r'"([^"]+)"', answer)
    lines = [
        f'{name}: "{text}"'
        for name, text in resources.items()
        if name.startswith(_WORDS) and any(word in str(text) for word in named)
    ]
    return f" (from {' and '.join(sorted(lines))})" if lines else ""


def query(everyone: bool = False) -> Queue:
    """All jobs of this user, or of everyone, in one query."""
    user = "*" if everyone else user_name(os.getuid())
    try:
        return parse_queue(call(["qstat", "-f", "-ne", "-u", user, "-xml"]))
    except InputError as error:
        raise TryAgain(str(error)) from None  # there is nothing in these words to refuse


def record(number: str, name: str, index: int | None = None) -> AccountingRecord | None:
    """What the accounting says of a job, or of a task of an array, if it has an entry already.

    It may be too slow (`TryAgain`): the accounting of many years is a large file.
    """
    try:
        words = ["qacct", "-j", number, *(["-t", str(index)] if index else [])]
        return parse_record(call(words, ACCOUNTING_SECONDS), name)
    except InputError:
        return None  # no entry, or no accounting on this machine


def error_reason(number: str) -> str:
    """Why a job is in an error state."""
    try:
        return parse_error(call(["qstat", "-j", number]))
    except (TryAgain, InputError) as error:
        return f"its reason is not known: {error}"


def delete(numbers: Iterable[str]) -> None:
    """Delete jobs; it does not matter if one is already gone."""
    if words := list(numbers):
        with contextlib.suppress(InputError):  # the caller looks whether they are gone
            call(["qdel", *words])


def submitted(answer: str) -> str:
    """The number of a job, or of an array: the last word that ``qsub -terse`` printed."""
    match = re.search(r"(?:^|\s)(\d+)(?:\.\S+)?\s*$", answer)
    if match is None:
        raise TryAgain(f"qsub answered {answer.strip()!r}, not the number of a job")
    return match[1]


class GridEngine:
    """Grid Engine's arrays, whose indices begin at 1; see `Scheduler`."""

    title = "Grid Engine"
    client = "qstat"
    own_index = "index=$SGE_TASK_ID job=$JOB_ID"

    def most_tasks(self) -> int:
        match = re.search(r"^max_aj_tasks\s+(\d+)", call(["qconf", "-sconf"]), re.MULTILINE)
        return (int(match[1]) if match else 0) or sys.maxsize  # 0: as many as you like

    def submit(self, array: Array, words: Sequence[str], script: Path, throttle: int | None) -> str:
        exported = [key for key in os.environ if key.startswith("SHARDWISE_")]
        options = [*_own_words(array.name, "/dev/null", exported), "-t", f"1-{array.tasks}"]
        limit = ["-tc", str(throttle)] if throttle else []
        return submitted(call([*options, *limit, *words, str(script)]))

    def tasks(self, runs: Iterable[str]) -> list[Tasks]:
        return [
            replace(task, trouble=f"{task.trouble}: {error_reason(task.number)}")
            if task.trouble
            else task
            for task in listed(query(), runs)
        ]

    def fates(
        self, runs: Iterable[str], gone: Mapping[str, tuple[str, Sequence[int]]]
    ) -> dict[tuple[str, int], Fate]:
        fates = {}
        tasks = [(name, number, index) for name, (number, some) in gone.items() for index in some]
        # An accounting that is too slow to ask is one that does not know.
        with contextlib.suppress(TryAgain):
            for name, number, index in tasks[:_RECORDS_AT_ONCE]:
                if (entry := record(number, name, index)) is not None:
                    fates[name, index] = Fate(describe(entry), not entry.well, entry.well)
        return fates

    def cancel_tasks(self, number: str, which: Sequence[int]) -> None:
        for span in ranges(sorted(which)).split(","):
            with contextlib.suppress(InputError):
                call(["qdel", number, "-t", span])

    def cancel(self, run: str) -> bool:
        left = {job.number for job in query().named(run)}
        delete(sorted(left))
        return bool(left)

    def living(self, names: Iterable[str]) -> list[str]:
        queue = query(everyone=True)
        return [job.number for name in names for job in queue.named(name)]

    def run_time(self, words: Sequence[str]) -> float | None:
        limits = re.findall(r"\b[hs]_rt=(?:(\d*):(\d*):)?(\d+)\b", " ".join(words))
        seconds = [int(h or 0) * 3600 + int(m or 0) * 60 + int(s) for h, m, s in limits]
        return min(seconds, default=None)

    def end_of_task(self, run_time: float | None) -> float | None:
        return None if run_time is None else time.time() + run_time

    def commands(self, runs: Iterable[str], numbers: Iterable[str]) -> tuple[str, str]:
        return "qstat -u '*'", shlex.join(["qdel", *numbers])
