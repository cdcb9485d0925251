"""One run under Grid Engine: submit its jobs, follow them, and leave none behind.

Snakemake starts a script of the profile for every such step. What they have to know of each other
lies in a folder of the run: for each job NUMBER.job (what was submitted), NUMBER.exit (the mark of
its end, which profiles/uge/job.sh writes) and what it printed; and the answer of the last qstat,
which serves all jobs for some seconds. So success depends on a file of the job alone, and not on
the accounting, which comes late on some clusters and is not there on others.
"""

import contextlib
import fcntl
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shardwise.dispatch import jobs, uge
from shardwise.dispatch.uge import Job, Queue
from shardwise.errors import InputError, TryAgain
from shardwise.paths import CACHE, Results

RUN = "SHARDWISE_RUN"
"""The variable that tells the profile's scripts the folder of the run."""

_RESULTS = "SHARDWISE_RESULTS"

SNAPSHOT_SECONDS = 3
"""An answer of qstat serves so long."""

AWAY_SECONDS = 600
"""How long a submission, or a deletion, waits for a qmaster that does not answer."""

_PAUSE_SECONDS = 5
_MESSAGE_SECONDS = 60

_TRACE_SECONDS = 15
"""How long the mark of a job's end, or its record, may take to arrive after it left the queue."""

_UNHEARD_SECONDS = 60
"""How long a host has to be unheard of before its jobs are lost.

After a restart of qmaster all hosts are, for half a minute. (Grid Engine itself calls a host that
only after five minutes of silence, or what a site has set as max_unheard.)
"""


def begin(results: Results) -> None:
    """Give this run a name and a folder, for the scripts that Snakemake starts from now on."""
    name = os.urandom(3).hex()
    os.environ[RUN] = str((CACHE / "uge" / name).absolute())
    os.environ[_RESULTS] = str(results.root.absolute())
    # The scripts are to run by this Python, and not by what else is called python3 here.
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))


def folder() -> Path:
    """The folder of the run that started this script.

    Raises
    ------
    InputError
        Where it was not started by a run of this workflow.
    """
    if RUN not in os.environ:
        raise InputError(f"{RUN} is not set: this script is for a run of Shardwise's own Snakefile")
    return Path(os.environ[RUN])


@dataclass(frozen=True)
class Note:
    """What is known of a job from its submission."""

    name: str
    log: str
    output: str
    submitted: float


def _write(path: Path, value: Any) -> None:
    """Write JSON in one piece: others read the file at any time."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(json.dumps(value))
    part.replace(path)


def _read(path: Path) -> Any:
    """JSON from a file; None where there is no such file."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None


def _say(run: Path, text: str) -> None:
    """A line on stderr, where the user sees it; at most once a minute."""
    mark = run / "said"
    with contextlib.suppress(FileNotFoundError):
        if time.time() - mark.stat().st_mtime < _MESSAGE_SECONDS:
            return
    mark.touch()
    sys.stderr.write(f"shardwise: {text}\n")


def _log(path: str, level: str, text: str) -> None:
    """A line in a job's own log, as the job itself would write it."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    now = time.strftime("%Y-%m-%d %H:%M:%S,000")
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{now} {level} {text}\n")


# Submission.


def submit(jobscript: Path, wrapper: Path) -> str:
    """Submit a job of Snakemake's and return its number.

    Raises
    ------
    InputError
        Where Grid Engine does not take it; the job's log has its words too.
    TryAgain
        Where it has not answered for ten minutes.
    """
    run = folder()
    if not run.exists():
        run.mkdir(parents=True)
        jobs.remember(Results(Path(os.environ[_RESULTS])), "uge", run.name)
    text = jobscript.read_text()
    properties = _properties(text)
    attempt = re.search(r"--attempt (\d+)", text)
    name = uge.job_name(run.name, properties, int(attempt[1]) if attempt else 1)
    log = next(iter(properties["log"]), "")
    # A relative name: a colon in it would have a meaning of its own.
    output = os.path.relpath(run / f"{name}.out")
    try:
        exported = [key for key in os.environ if key.startswith("SHARDWISE_")]
        words = uge.qsub_words(properties, name, output, exported)
        number = _insist(run, name, [*words, str(wrapper), str(jobscript), str(run)])
    except (InputError, TryAgain) as error:
        if log:
            _log(log, "ERROR", f"Grid Engine did not take the job: {error}")
        raise
    _write(run / f"{number}.job", asdict(Note(name, log, output, time.time())))
    return number


def _properties(text: str) -> dict[str, Any]:
    """What Snakemake tells of a job in the second line of its script."""
    match = re.search(r"^# properties = (\{.*\})$", text, re.MULTILINE)
    if match is None:
        raise InputError("the job's script has no line '# properties = {…}'")
    return json.loads(match[1])


def _insist(run: Path, name: str, words: list[str]) -> str:
    """Submit; where qmaster does not answer, wait for it, and never submit twice.

    A submission may have arrived although its answer did not, so its name is looked for first.
    """
    end = time.monotonic() + AWAY_SECONDS
    asked = False
    while True:
        try:
            if asked and (number := _number_of(name)):
                return number
            asked = True
            return uge.call(words).split()[-1]
        except TryAgain as error:
            if time.monotonic() > end:
                raise
            _say(run, f"Grid Engine does not take jobs now ({error}); trying again")
            time.sleep(_PAUSE_SECONDS)


def _number_of(name: str) -> str | None:
    return next((job.number for job in uge.query().jobs if job.name == name), None)


# Following.


@dataclass(frozen=True)
class Verdict:
    """What becomes of a job: ``running``, ``success`` or ``failed``; and why, if not by itself."""

    state: str
    reason: str = ""


def judge(
    job: Job | None,
    exit_code: int | None,
    record: uge.Record | None,
    lost: bool,
    waited: bool,
    started: bool,
) -> Verdict:
    """Decide on one job.

    Parameters
    ----------
    job
        The job in the queue, if it is still there.
    exit_code
        What the mark of its end says, if it is there.
    record
        What the accounting says, if it has an entry.
    lost
        Whether its host has not been heard of for too long.
    waited
        Whether enough time has passed since it left the queue for a mark or record to arrive.
    started
        Whether it ever ran.
    """
    if exit_code is not None:
        return Verdict("failed" if exit_code else "success")
    reason = ""
    if job is not None:
        if "E" in job.state:
            reason = f"it cannot start (state {job.state})"
        elif lost:
            reason = f"lost: its host {', '.join(job.hosts)} is not heard of"
    elif record is not None:
        reason = uge.describe(record)
    elif waited and started:
        reason = "it left the queue without a trace: deleted, or killed"
    elif waited:
        reason = "deleted while it waited in the queue"
    return Verdict("failed", reason) if reason else Verdict("running")


@dataclass(frozen=True)
class Snapshot:
    """An answer of qstat: when it was asked, and since when each silent host has been so."""

    asked: float
    queue: Queue
    silent: dict[str, float]

    def lost(self, job: Job) -> bool:
        """Whether a job's host has been silent for too long."""
        since = [self.silent[host] for host in job.hosts if host in self.silent]
        return bool(since) and self.asked - min(since) >= _UNHEARD_SECONDS


def status(number: str) -> str:
    """What Snakemake is to think of a job: ``running``, ``success`` or ``failed``.

    A failed job does not stay in the queue, and its log says why where it could not itself.
    """
    run = folder()
    if (code := _exit_code(run, number)) == 0:
        return "success"
    if (value := _read(run / f"{number}.job")) is None:
        raise InputError(f"job {number} is not of this run")
    note = Note(**value)
    verdict, job = Verdict("failed"), None
    if code is None:
        try:
            snapshot = _snapshot(run)
        except TryAgain as error:
            _say(run, f"Grid Engine does not answer ({error}); its jobs count as running")
            return "running"
        if snapshot.asked <= note.submitted:
            return "running"
        job = snapshot.queue.job(number)
        # The mark is older than the job's absence.
        verdict = _look(run, number, note, job, bool(job and snapshot.lost(job)))
    if verdict.state == "failed":
        _explain(run, number, note, job, verdict)
    return verdict.state


def _look(run: Path, number: str, note: Note, job: Job | None, lost: bool) -> Verdict:
    """Judge a job by the queue, and by what it left where it is not there."""
    record, waited = None, False
    if job is None and _exit_code(run, number) is None:
        gone = run / f"{number}.gone"
        if not gone.exists():
            gone.touch()
        waited = time.time() - gone.stat().st_mtime >= _TRACE_SECONDS
        record = _record(run, number, note.name)
        os.listdir(run)  # makes a network disk look again
    started = Path(note.output).exists()
    return judge(job, _exit_code(run, number), record, lost, waited, started)


def _exit_code(run: Path, number: str) -> int | None:
    return _read(run / f"{number}.exit")


def _record(run: Path, number: str, name: str) -> uge.Record | None:
    """The accounting's entry; an accounting that was too slow once is not asked again."""
    slow = run / "qacct.slow"
    if slow.exists():
        return None
    try:
        return uge.record(number, name)
    except TryAgain:
        slow.touch()
        return None


def _explain(run: Path, number: str, note: Note, job: Job | None, verdict: Verdict) -> None:
    """Write into a failed job's log what it could not say itself; take it out of the queue."""
    reason = verdict.reason
    if job is not None:
        if "E" in job.state:
            reason += f": {uge.error_reason(number)}"
        with contextlib.suppress(TryAgain):  # the end of the run deletes what is left
            uge.delete([number])
    text = f"the scheduler says: {reason}"
    if not reason:
        if _spoke(note):
            return
        text = f"it ended before its own log began; the last line of {note.output}: "
        text += _last_line(Path(note.output))
    if note.log:
        # What the job itself called an error is worth more than how it ended.
        _log(note.log, "WARNING" if _spoke(note, "ERROR") else "ERROR", text)


def _spoke(note: Note, level: str = "") -> bool:
    """Whether a job's log has lines of this attempt, of a level where one is named."""
    try:
        if os.stat(note.log).st_mtime < note.submitted:
            return False
        return f" {level}" in Path(note.log).read_text(errors="replace")
    except OSError:
        return False


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").split("\n")
    except OSError:
        return "there is no such file"
    return next((line for line in reversed(lines) if line.strip()), "it is empty")


def _snapshot(run: Path) -> Snapshot:
    """The last answer of qstat, or a new one where it is too old; one process asks for all.

    Raises
    ------
    TryAgain
        Where Grid Engine does not answer.
    """
    with _locked(run / "snapshot.lock"):
        last = _read(run / "snapshot.json")
        if last and 0 <= time.time() - last["asked"] < SNAPSHOT_SECONDS:
            if last["away"]:
                raise TryAgain(last["away"])
            return _snapshot_of(last)
        silent = last["silent"] if last else {}
        asked = time.time()
        try:
            queue = uge.query()
        except TryAgain as error:
            # The age counts from the end of a question that may have taken long.
            _write(
                run / "snapshot.json",
                {"asked": time.time(), "away": str(error), "silent": silent, "jobs": []},
            )
            raise
        silent = {host: silent.get(host, asked) for host in queue.unheard}
        listed = [asdict(job) for job in queue.jobs]
        fresh = {"asked": asked, "away": "", "silent": silent, "jobs": listed}
        _write(run / "snapshot.json", fresh)
        return _snapshot_of(fresh)


def _snapshot_of(value: dict[str, Any]) -> Snapshot:
    found = tuple(Job(**{**job, "hosts": tuple(job["hosts"])}) for job in value["jobs"])
    return Snapshot(value["asked"], Queue(found, frozenset(value["silent"])), dict(value["silent"]))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "a") as file:
        with contextlib.suppress(OSError):  # a disk without locks: several then ask at once
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


# Leaving.


def cancel(run: Path, pause: Callable[[float], None] = time.sleep) -> None:
    """Delete all jobs of a run, until the queue has none of them; at most for ten minutes.

    A submission that was cut off may still arrive: so none has to be seen twice.
    """
    end, empty = time.monotonic() + AWAY_SECONDS, 0
    while empty < 2 and time.monotonic() < end:
        with contextlib.suppress(TryAgain):
            left = uge.living([run.name])
            uge.delete(left)
            empty = 0 if left else empty + 1
        pause(2)


def cancel_detached(script: Path) -> None:
    """Have a process of its own delete this run's jobs: Snakemake gives us two seconds."""
    subprocess.Popen(
        [sys.executable, str(script), "--stay"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
