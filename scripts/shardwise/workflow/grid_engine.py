"""One run under Grid Engine: submit its jobs, follow them, and leave none behind.

Snakemake starts a script of the profile for every such step. What they have to know of each other
lies in a folder of the run. By the number of a job: NUMBER.job, what was submitted; NUMBER.exit,
the mark of its end, which profiles/uge/job.sh writes; NUMBER.gone, when it was first seen to have
left the queue without one. By its name: NAME.submitting, while qsub is asked; NAME.number, the
first that job.sh writes; NAME.out, what the job printed. Beside them the last answer of qstat,
which serves all jobs for some seconds. So success depends on a file of the job alone, and not on
the accounting, which comes late on some clusters and is not there on others.
"""

import atexit
import contextlib
import fcntl
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shardwise.dispatch.schedulers import grid_engine
from shardwise.dispatch.schedulers.common import UNHEARD_SECONDS
from shardwise.dispatch.schedulers.grid_engine import Job, Queue
from shardwise.errors import InputError, QueueFull, ShardwiseError, TryAgain
from shardwise.files.paths import CACHE, Results
from shardwise.workflow import claim

RUN = "SHARDWISE_RUN"
"""The variable that tells the profile's scripts the folder of the run."""

_RESULTS = "SHARDWISE_RESULTS"
_WRAPPER = "job.sh"

SNAPSHOT_SECONDS = 3
"""An answer of qstat serves so long; that it did not answer, five times as long."""

AWAY_SECONDS = 600
"""How long a submission, or a deletion, waits for a qmaster that does not answer."""

_PAUSE_SECONDS = 5
_LOOK_SECONDS = 2
_MESSAGE_SECONDS = 60

_TRACE_SECONDS = 10
"""How long the mark of a job's end, or its record, may take to arrive after it left the queue.

The mark is on the disk before the job leaves. A network disk shows it to this machine as soon as
something is written into its folder, as each answer of qstat is.
"""

_NEVER_RAN_SECONDS = 3
"""The same for a job that has not even begun its output, which Grid Engine makes before it runs."""

_KEPT_SECONDS = 10 * 24 * 3600

_OWN_ERROR = re.compile(r"^[\d-]+ \S+ ERROR (?!ended by SIGTERM)", re.MULTILINE)


def begin(results: Results, settings: Any, start: str, needed: Iterable[Any]) -> None:
    """Give a run under ``profiles/uge`` a name and a folder, for the scripts that Snakemake starts.

    Parameters
    ----------
    settings
        Of the executor plugin; the commands of this profile are made to work from any folder.
    start
        The folder that snakemake was started in.
    needed
        The jobs of Snakemake's that are to run.

    Raises
    ------
    InputError
        Where no job could be submitted from this working directory, or where Grid Engine does not
        know what the profile asks for.
    """
    words = [getattr(settings, f"{what}_cmd", None) for what in ("submit", "status", "cancel")]
    if not all(words) or not Path(start, words[0]).with_name(_WRAPPER).exists():
        return  # another profile
    if odd := sorted(set('"$`\\').intersection(os.getcwd())):
        # Snakemake has a shell read the names of the jobs' scripts, within double quotes.
        raise InputError(
            f"the name of the working directory holds {' '.join(odd)}, which Snakemake cannot pass "
            f"on to Grid Engine: {os.getcwd()}. Rename the folder, or work in another one"
        )
    submit, status, cancel = (Path(start, word) for word in words)
    _verify(needed, submit.with_name("config.yaml"))
    run = (CACHE / "uge" / os.urandom(3).hex()).absolute()
    os.environ.update({RUN: str(run), _RESULTS: str(results.root.absolute())})
    # The scripts are to run by this Python, and not by what else is called python3 here.
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    # Two of them are read by a shell, the first after Snakemake has filled in what is in braces.
    settings.submit_cmd = shlex.quote(str(submit)).replace("{", "{{").replace("}", "}}")
    settings.status_cmd, settings.cancel_cmd = shlex.quote(str(status)), str(cancel)
    atexit.register(_leave, run, cancel)


def _verify(needed: Iterable[Any], profile: Path) -> None:
    """Have Grid Engine look at what one job of each rule asks for, before any is submitted.

    Else a wrong parallel environment for the reduce would show when all shards are done. A qmaster
    that does not answer is waited for later.
    """
    rules = {job.rule.name: job for job in needed if not job.is_local}
    with contextlib.suppress(TryAgain):
        for name, job in rules.items():
            try:
                grid_engine.verify(job.resources)
            except InputError as error:
                raise InputError(
                    f"Grid Engine would not take the jobs of rule {name}: {error}; change it in "
                    f"{profile}"
                ) from None


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
    """What is known of a job from its submission.

    `since` is a time before it, in Unix seconds by the clock of the disk, as that of its log is;
    `submitted` one after it, by the clock of this machine.
    """

    name: str
    log: str
    output: str
    since: float
    submitted: float = 0


def _write(path: Path, value: Any) -> None:
    """Write JSON in one piece: others read the file at any time."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(json.dumps(value))
    part.replace(path)


def _read(path: Path) -> Any:
    """JSON from a file; None where there is no such file, or no whole one."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None


def _say(run: Path, subject: str, text: str) -> None:
    """A line on stderr, where the user sees it; at most once a minute on each subject."""
    said, now = run / f"said.{subject}", time.time()
    with contextlib.suppress(OSError):  # to be told twice is better than never
        if said.exists() and now - said.stat().st_mtime <= _MESSAGE_SECONDS:
            return
        said.touch()  # only its time says something: that can be set on a full disk, too
        os.utime(said, (now, now))
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
        Where it has not answered for ten minutes; a queue that is full has no such limit.
    """
    run = folder()
    if not run.exists():
        claim.remember(Results(Path(os.environ[_RESULTS])), "uge", run.name)
        run.mkdir(parents=True)
        _forget_old_runs(run)
    text = jobscript.read_text()
    properties = _properties(text)
    attempt = re.search(r"--attempt (\d+)", text)
    name = grid_engine.job_name(run.name, properties, int(attempt[1]) if attempt else 1)
    on_its_way = run / f"{name}.submitting"
    on_its_way.touch()
    # A relative name: a colon in it would have a meaning of its own.
    output = os.path.relpath(run / f"{name}.out")
    note = Note(name, properties["log"][0], output, on_its_way.stat().st_mtime)
    try:
        exported = [key for key in os.environ if key.startswith("SHARDWISE_")]
        words = grid_engine.qsub_words(properties, name, note.output, exported)
        number = _insist(run, name, [*words, str(wrapper), str(jobscript), str(run)])
    except ShardwiseError as error:
        _log(note.log, "ERROR", f"Grid Engine did not take the job: {error}")
        if isinstance(error, InputError):  # else it may still arrive
            on_its_way.unlink()
        raise
    _write(run / f"{number}.job", asdict(note) | {"submitted": time.time()})
    on_its_way.unlink()
    return number


def _forget_old_runs(run: Path) -> None:
    """Remove the folders of runs that have not been written to for days: nobody follows them."""
    for folder in run.parent.iterdir():
        if run.stat().st_mtime - folder.stat().st_mtime > _KEPT_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)


def _properties(text: str) -> dict[str, Any]:
    """What Snakemake tells of a job in the second line of its script."""
    match = re.search(r"^# properties = (\{.*\})$", text, re.MULTILINE)
    if match is None:
        raise InputError("the job's script has no line '# properties = {…}'")
    return json.loads(match[1])


def _insist(run: Path, name: str, words: list[str]) -> str:
    """Submit; where qmaster does not answer, wait for it, and never submit twice.

    A submission may have arrived although its answer did not, so the job is looked for first.
    A full queue is waited for as long as it takes: qmaster is there, and jobs end.
    """
    end, unheard = time.monotonic() + AWAY_SECONDS, False
    while True:
        try:
            if unheard and (number := _number_of(run, name)):
                return number
            return grid_engine.submitted(grid_engine.call(words))
        except QueueFull as error:
            end = time.monotonic() + AWAY_SECONDS
            _say(
                run,
                "submission",
                f"the cluster takes no more jobs now ({error}); waiting until some have ended. "
                "--jobs sets how many of a run are in the queue",
            )
        except TryAgain as error:
            unheard = True
            if time.monotonic() > end:
                raise
            _say(run, "submission", f"Grid Engine does not take jobs now ({error}); trying again")
        time.sleep(_PAUSE_SECONDS)


def _number_of(run: Path, name: str) -> str | None:
    """The number of a job that is in the queue, or that has been there and ran."""
    for job in grid_engine.query().jobs:
        if job.name == name:
            return job.number
    number = _read(run / f"{name}.number")
    return None if number is None else str(number)


# Following.


@dataclass(frozen=True)
class Snapshot:
    """An answer of qstat: when it was asked, and since when each silent host has been so."""

    asked: float
    queue: Queue
    silent: dict[str, float]

    def lost(self, job: Job) -> bool:
        """Whether a job's host has been silent for too long."""
        since = [self.silent[host] for host in job.hosts if host in self.silent]
        return bool(since) and self.asked - min(since) >= UNHEARD_SECONDS


def look(number: str) -> str:
    """`status`, for Snakemake, which would end the run with any other end of its script.

    A fault, such as a full disk, counts as ``running`` until it is mended, with a line each minute.
    """
    try:
        return status(number)
    except Exception as error:
        _say(
            folder(),
            "fault",
            f"the state of job {number}, and maybe of others, cannot be found "
            f"({type(error).__name__}: {error}); they count as running. If this does not end by "
            "itself, see qstat; Ctrl-C deletes the jobs of this run",
        )
        return "running"


def status(number: str) -> str:
    """What Snakemake is to think of a job: ``running``, ``success`` or ``failed``.

    A failed job does not stay in the queue, and its log says why where it could not itself.
    """
    run = folder()
    value = _read(run / f"{number}.job")
    if value is None:
        sys.stderr.write(f"shardwise: job {number} is none of this run; it counts as failed\n")
        return "failed"
    note, code = Note(**value), _exit_code(run, number)
    if code is not None:
        if code:
            _tell_early_end(note)
        return "failed" if code else "success"
    try:
        snapshot = _snapshot(run)
    except TryAgain as error:
        _say(run, "queue", f"Grid Engine does not answer ({error}); its jobs count as running")
        return "running"
    if snapshot.asked <= note.submitted:
        return "running"
    return _follow(run, number, note, snapshot)


def _follow(run: Path, number: str, note: Note, snapshot: Snapshot) -> str:
    """Judge a job by an answer of qstat, and by what it left where it is not there."""
    job = snapshot.queue.job(number)
    record, began, waited = None, True, False
    if job is not None:
        (run / f"{number}.gone").unlink(missing_ok=True)
    else:
        since = _gone_since(run, number)
        began = Path(note.output).exists()
        waited = time.time() - since >= (_TRACE_SECONDS if began else _NEVER_RAN_SECONDS)
        if _exit_code(run, number) is not None:
            return status(number)
        record = _record(run, number, note.name)
    reason = judge(job, record, bool(job and snapshot.lost(job)), began, waited)
    if not reason:
        return "running"
    if job is not None:
        if "E" in job.state:
            reason += f": {grid_engine.error_reason(number)}"
        try:
            grid_engine.delete([number])
        except TryAgain as error:  # it may still be there: the next look deletes it
            _say(run, "deletion", f"job {number} cannot be deleted now ({error}); trying again")
            return "running"
    # What the job itself called an error is worth more than how it was ended.
    level = "WARNING" if _OWN_ERROR.search(_own_log(note)) else "ERROR"
    _log(note.log, level, f"the scheduler says: {reason}")
    _write(run / f"{number}.exit", 1)
    return "failed"


def judge(
    job: Job | None,
    record: grid_engine.AccountingRecord | None,
    lost: bool,
    began: bool,
    waited: bool,
) -> str:
    """Why a job without a mark of its end counts as failed; empty where it does not.

    Parameters
    ----------
    job
        The job in the queue, if it is still there.
    record
        What the accounting says, if it has an entry.
    lost
        Whether a host of it has not been heard of for too long.
    began
        Whether it ever ran.
    waited
        Whether enough time has passed since it left the queue for a mark or record to arrive.
    """
    if job is not None and "E" in job.state:
        return f"it cannot start, state {job.state}"
    if job is not None:
        return f"lost: its host {', '.join(job.hosts)} is not heard of" if lost else ""
    if record is not None and (waited or not record.well):
        return grid_engine.describe(record)
    if not waited:
        return ""
    if not began:
        return "deleted while it waited in the queue"
    return "deleted or killed; the accounting does not know it"


def _exit_code(run: Path, number: str) -> int | None:
    return _read(run / f"{number}.exit")


def _gone_since(run: Path, number: str) -> float:
    """When a job was first seen to have left the queue, in Unix seconds."""
    gone = run / f"{number}.gone"
    if (since := _read(gone)) is None:
        _write(gone, since := time.time())
    return since


def _record(run: Path, number: str, name: str) -> grid_engine.AccountingRecord | None:
    """The accounting's entry; an accounting that was too slow once is not asked again."""
    slow = run / "qacct.slow"
    if slow.exists():
        return None
    try:
        return grid_engine.record(number, name)
    except TryAgain:
        slow.touch()
        return None


def _tell_early_end(note: Note) -> None:
    """Where a job ended before its own log began, give the log the last line that it printed."""
    if _own_log(note):
        return
    try:
        printed = Path(note.output).read_text(errors="replace").splitlines()
    except OSError:
        printed = []
    last = next((line for line in reversed(printed) if line.strip()), "nothing")
    _log(note.log, "ERROR", f"the job ended early and printed: {last} (all of it: {note.output})")


def _own_log(note: Note) -> str:
    """What a job has written into its log; empty where all of it is of an earlier attempt."""
    try:
        if os.stat(note.log).st_mtime >= note.since:
            return Path(note.log).read_text(errors="replace")
    except OSError:
        pass
    return ""


def _snapshot(run: Path) -> Snapshot:
    """The last answer of qstat, or a new one where it is too old; one process asks for all.

    Raises
    ------
    TryAgain
        Where Grid Engine does not answer.
    """
    with _locked(run / "snapshot.lock"):
        last = _read(run / "snapshot.json") or {"until": 0, "silent": {}}
        if last["until"] <= time.time():
            last = _ask(run, last["silent"])
            _write(run / "snapshot.json", last)
    if last["away"]:
        raise TryAgain(last["away"])
    found = tuple(Job(**{**job, "hosts": tuple(job["hosts"])}) for job in last["jobs"])
    return Snapshot(last["asked"], Queue(found, frozenset(last["silent"])), last["silent"])


def _ask(run: Path, silent: dict[str, float]) -> dict[str, Any]:
    """Ask qstat; note also, for profiles/uge/status.sh, which jobs need no further look.

    Where qmaster was away, the silence of hosts is counted from anew: it may have been restarted.
    """
    asked = time.time()
    try:
        queue = grid_engine.query()
    except TryAgain as error:
        until = time.time() + 5 * SNAPSHOT_SECONDS
        return {"asked": asked, "until": until, "away": str(error), "silent": {}, "jobs": []}
    until = asked + SNAPSHOT_SECONDS
    fine = [j.number for j in queue.jobs if "E" not in j.state and not queue.unheard & {*j.hosts}]
    part = run / f"fine.{os.getpid()}"
    part.write_text("".join(f"{line}\n" for line in (int(until), *fine)))
    part.replace(run / "fine")
    silent = {host: silent.get(host, asked) for host in queue.unheard}
    listed = [asdict(job) for job in queue.jobs]
    return {"asked": asked, "until": until, "away": "", "silent": silent, "jobs": listed}


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "a") as file:
        with contextlib.suppress(OSError):  # a disk without locks: several then ask at once
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


# Leaving.


def cancel(run: Path) -> None:
    """Delete all jobs of a run, until the queue has none of them; at most for ten minutes.

    A submission that was cut off may still arrive: so none has to be seen twice.
    """
    end, empty = time.monotonic() + AWAY_SECONDS, 0
    while empty < 2 and time.monotonic() < end:
        with contextlib.suppress(TryAgain):
            left = [job.number for job in grid_engine.query().named(run.name)]
            grid_engine.delete(left)
            empty = 0 if left else empty + 1
        time.sleep(_LOOK_SECONDS)


def cancel_detached(script: Path) -> None:
    """Have a process of its own delete this run's jobs: Snakemake gives the script two seconds."""
    subprocess.Popen(
        [sys.executable, str(script), "--stay"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _leave(run: Path, script: Path) -> None:
    """At the end of snakemake, delete what it has submitted and not seen to its end.

    When it is interrupted while it looks at its jobs, Snakemake forgets those that it cancels.
    """
    ended = {mark.stem for mark in run.glob("*.exit")}
    if any(run.glob("*.submitting")) or any(n.stem not in ended for n in run.glob("*.job")):
        cancel_detached(script)
