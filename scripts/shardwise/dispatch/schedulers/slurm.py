"""What the project asks of Slurm itself: living jobs, and arrays. Its plugin does everything else.

Those functions that ask Slurm raise `TryAgain` if it does not answer, which is never a reason
to give a task up, and `InputError` if it refuses.
"""

import contextlib
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from shardwise.dispatch.schedulers.common import Array, Fate, QueueFull, Tasks, ask, numbers, ranges
from shardwise.errors import InputError, TryAgain
from shardwise.processes.environment import without_stray

_QUERY_SECONDS = 30
_SUBMIT_SECONDS = 180
"""sbatch itself tries for two minutes if the cluster has as many jobs as it allows."""

_MAX_ARRAY_SIZE = 1001  # what Slurm itself takes where no MaxArraySize is set; indices end below it

_AWAY = re.compile(
    r"unable to contact|timed? ?out|connection|zero bytes|communication|transport endpoint"
    r"|unexpected message|try again later",
    re.IGNORECASE,
)
_FULL = re.compile(
    r"Submit\w*Job|temporarily unable to accept|resource temporarily unavailable"
    r"|MaxJobCount|maximum.* job count",
    re.IGNORECASE,
)

_WRONG = re.compile(
    r"invalid|unrecognized|unknown|not permitted|node configuration is not available", re.IGNORECASE
)

_FORMAT = "%F|%K|%k|%T|%r|%N"
"""Array's number, indices, comment (the array's own name), state, reason, nodes."""

_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
_ENDED_BY_SLURM = frozenset(
    {"BOOT_FAIL", "CANCELLED", "DEADLINE", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
     "TIMEOUT"}
)  # fmt: skip

_HOPELESS = frozenset(
    {"AccountNotAllowed", "BadConstraints", "DependencyNeverSatisfied", "InvalidAccount",
     "InvalidQOS", "JobHeldAdmin", "PartitionTimeLimit", "QOSNotAllowed"}
)  # fmt: skip
"""Reasons for which a task will not start until someone changes something.

PartitionNodeLimit is none: Slurm says it also while nodes are down.
"""

_MISFIRED = frozenset({"launch failed requeued held", "jobholdmaxrequeue"})
"""Reasons for which Slurm itself holds a task after failed starts; a new submission may start."""


def _squeue(form: str, names: Iterable[str], *words: str) -> list[str]:
    command = ["squeue", "--all", "--noheader", f"--format={form}", f"--name={','.join(names)}"]
    try:
        return call([*command, *words], _QUERY_SECONDS).splitlines()
    except InputError as error:
        raise TryAgain(str(error)) from None  # there is nothing in these words to refuse


def call(words: Sequence[str], seconds: float) -> str:
    """Run a command of Slurm and return what it printed.

    Raises TryAgain if it does not answer in so many seconds, or says that it reaches no
    controller; QueueFull where it says that the cluster takes no more jobs for now; InputError
    if it fails otherwise; with its own words.
    """
    # Without the last squeue cuts the indices of an array off after 64 characters.
    env = without_stray() | {"SLURM_BITSTR_LEN": "0"}
    return ask(words, seconds, "load Slurm first", refusal, env)


def refusal(text: str, _code: int = 1) -> Exception:
    """What a command of Slurm means that has failed with such words; see `call`."""
    text = re.sub(r"\w+: error: ", "", text)
    kinds = {QueueFull: _FULL, TryAgain: _AWAY}
    return next((kind for kind in kinds if kinds[kind].search(text)), InputError)(text)


def verify(words: Sequence[str]) -> None:
    """Have sbatch check what a task asks for, and submit nothing.

    Raises InputError if the words are wrong, or this cluster has no such node; TryAgain if
    Slurm does not answer.
    """
    try:
        call(["sbatch", *words, "--test-only", "--output=/dev/null", "--wrap=true"], _QUERY_SECONDS)
    except InputError as error:
        if _WRONG.search(str(error)):  # other words speak of this moment only
            raise


def parse_tasks(lines: Iterable[str]) -> list[Tasks]:
    """Read what squeue printed; `TryAgain` if that is not what was asked for."""
    listed = []
    for number, indices, name, state, reason, nodes in map(_row, lines):
        if state not in _WAITING:
            where, ending = nodes or state.lower(), state == "COMPLETING"
            listed.append(Tasks(number, name, indices, where, ending=ending))
            continue
        misfired = reason.replace("_", " ").lower() in _MISFIRED
        trouble = f"{state} ({reason})" if misfired or reason in _HOPELESS else ""
        held = reason == "JobHeldUser"
        listed.append(
            Tasks(number, name, indices, "", trouble, bool(trouble) and not misfired, held)
        )
    return listed


def _row(line: str) -> tuple[str, tuple[int, ...], str, str, str, str]:
    """A line in `_FORMAT`, its indices as numbers."""
    try:
        number, spec, name, state, reason, nodes = line.split("|", 5)
        return number, tuple(numbers(spec)), name, state, reason, nodes
    except ValueError:
        raise TryAgain(f"squeue printed {line!r}, which describes no task") from None


def parse_fates(lines: Iterable[str]) -> dict[tuple[str, int], Fate]:
    """Read what squeue printed of all tasks, even ended ones; errors are as in `parse_tasks`."""
    fates = {}
    for _, indices, name, state, reason, nodes in map(_row, lines):
        words = state + (f" on {nodes}" if nodes else "")
        words += f" ({reason})" if reason not in ("", "None") else ""
        for index in indices:
            fates[name, index] = Fate(words, state in _ENDED_BY_SLURM, state == "COMPLETED")
    return fates


def _scancel(what: list[str]) -> None:
    if what:
        with contextlib.suppress(InputError):  # the caller looks whether they are gone
            call(["scancel", *what], _QUERY_SECONDS)


def _own_id() -> str:
    """The number of this job; for an array task, the number that no other task has."""
    own = os.environ["SLURM_JOB_ID"]
    array, index = (os.environ.get(f"SLURM_ARRAY_{name}_ID") for name in ("JOB", "TASK"))
    return f"{array}_{index}" if array and index else own


class Slurm:
    """Slurm's arrays, whose indices begin at 0; see `Scheduler`."""

    title = "Slurm"
    client = "squeue"
    own_index = "index=$SLURM_ARRAY_TASK_ID job=$SLURM_ARRAY_JOB_ID"

    def most_tasks(self) -> int:
        settings = call(["scontrol", "show", "config"], _QUERY_SECONDS)
        size = re.search(r"^MaxArraySize\s*=\s*(\d+)", settings, re.MULTILINE)
        fewer = re.search(
            r"^SchedulerParameters\s*=.*\bmax_array_tasks=(\d+)", settings, re.MULTILINE
        )
        limits = [int(size[1]) if size else _MAX_ARRAY_SIZE, *([int(fewer[1])] if fewer else [])]
        if not min(limits):
            raise InputError(
                "this Slurm takes no array jobs (MaxArraySize or max_array_tasks is 0); use "
                "dispatch: jobs"
            )
        return min(limits)

    def submit(self, array: Array, words: Sequence[str], script: Path, throttle: int | None) -> str:
        spec = f"0-{array.tasks - 1}" + (f"%{throttle}" if throttle else "")
        names = [f"--job-name={array.run}", f"--comment={array.name}", f"--array={spec}"]
        logs = ["--output=/dev/null", "--error=/dev/null"]
        command = ["sbatch", *words, "--parsable", *names, *logs, str(script)]
        answer = call(command, _SUBMIT_SECONDS)
        number = answer.split(";")[0].strip()
        if not number.isdigit():
            raise TryAgain(f"sbatch answered {answer.strip()!r}, not the number of a job")
        return number

    def tasks(self, runs: Iterable[str]) -> list[Tasks]:
        # One a line: squeue joins those that wait, and their reasons: "Resources,JobHeldAdmin".
        return parse_tasks(_squeue(_FORMAT, runs, "--array"))

    def fates(
        self, runs: Iterable[str], gone: Mapping[str, tuple[str, Sequence[int]]]
    ) -> dict[tuple[str, int], Fate]:
        return parse_fates(_squeue(_FORMAT, runs, "--states=all", "--array"))

    def cancel_tasks(self, number: str, which: Sequence[int]) -> None:
        _scancel([f"{number}_[{ranges(sorted(which))}]"])

    def cancel(self, run: str) -> bool:
        left = sorted({task.number for task in self.tasks([run])})
        _scancel(left)
        return bool(left)

    def living(self, names: Iterable[str]) -> list[str]:
        jobs = _squeue("%i", names)
        if strange := [line for line in jobs if not re.fullmatch(r"\d+(_.*)?", line)]:
            raise TryAgain(f"squeue printed {strange[0]!r}, not the number of a job")
        return jobs

    def run_time(self, words: Sequence[str]) -> None:
        return None

    def end_of_task(self, run_time: float | None) -> float | None:
        # The partition may have a limit of its own: Slurm knows what holds.
        try:
            end = call(
                ["squeue", "--noheader", "--format=%e", f"--jobs={_own_id()}"], _QUERY_SECONDS
            )
            return time.mktime(time.strptime(end.strip(), "%Y-%m-%dT%H:%M:%S"))
        except (TryAgain, InputError, ValueError, OverflowError):
            return None  # N/A where there is no limit

    def commands(self, runs: Iterable[str], numbers: Iterable[str]) -> tuple[str, str]:
        return f"squeue -j {','.join(numbers)}", f"scancel {' '.join(numbers)}"
