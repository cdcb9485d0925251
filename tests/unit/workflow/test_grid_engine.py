"""A run under Grid Engine, whose commands are pretended: submission, states, the way out."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from shardwise.errors import InputError, TryAgain
from shardwise.files.paths import Results
from shardwise.workflow import claim
from shardwise.workflow import grid_engine as executor

REPO = Path(__file__).parents[3]
PROFILE = REPO / "profiles" / "uge"
AWAY = 'error: unable to send message to qmaster using port 6444 on host "h": got send error'
LOG = "results/logs/multiply/00007.log"
JOBSCRIPT = """#!/bin/sh
# properties = {"rule": "multiply", "wildcards": {"shard": "00007"}, "log": ["LOG"], \
"resources": {"mem_mb": 10, "runtime": 1, "uge_gpu": "-l gpu=1"}}
cd /here && python -m snakemake --attempt 2 x && exit 0 || exit 1
""".replace("LOG", LOG)

# Each does what a file named after it says, once, and else what its last line does.
CLIENT = """#!/bin/sh
cd "{folder}"
name=${{0##*/}}
echo "$name $*" >>asked
if [ -e "$name.once" ]; then mv "$name.once" once; . ./once; fi
{otherwise}
"""
OTHERWISE = {
    "qsub": 'echo 11; echo "$*" >words',
    "qstat": 'case "$*" in -j*) cat reason ;; *) cat queue ;; esac',
    "qacct": 'cat record 2>/dev/null || { echo "error: job id not found" >&2; exit 1; }',
    "qdel": "empty=1; cp empty queue",
}
EMPTY = "<job_info><queue_info></queue_info><job_info></job_info></job_info>"
NAME = "sw-{run}-multiply-00007-2"


class Grid:
    """Grid Engine's commands, pretended, and one run in this folder."""

    def __init__(self, root: Path) -> None:
        self.bin = root / "bin"
        self.bin.mkdir()
        for name, otherwise in OTHERWISE.items():
            (self.bin / name).write_text(CLIENT.format(folder=self.bin, otherwise=otherwise))
            (self.bin / name).chmod(0o755)
        for name in ("queue", "empty"):
            (self.bin / name).write_text(EMPTY)
        (self.bin / "asked").touch()
        self.script = root / "snakejob.sh"
        self.script.write_text(JOBSCRIPT)

    @property
    def run(self) -> Path:
        """The folder of the run."""
        return executor.folder()

    def once(self, name: str, script: str) -> None:
        """Let the next call of a command do this."""
        (self.bin / f"{name}.once").write_text(script)

    def asked(self, name: str) -> list[str]:
        """The calls of a command, each as one line."""
        return [
            line for line in (self.bin / "asked").read_text().splitlines() if line.startswith(name)
        ]

    def queue(self, state: str, host: str = "", host_state: str = "") -> None:
        """Let qstat know job 11 in a state, on a host."""
        job = (
            f"<job_list><JB_job_number>11</JB_job_number><state>{state}</state>"
            f"<JB_name>{NAME.format(run=self.run.name)}</JB_name></job_list>"
        )
        place = f"<Queue-List><name>q@{host}</name><state>{host_state}</state>{job}</Queue-List>"
        (self.bin / "queue").write_text(
            f"<job_info><queue_info>{place if host else ''}</queue_info>"
            f"<job_info>{'' if host else job}</job_info></job_info>"
        )

    def submit(self) -> str:
        """Submit the one job."""
        return executor.submit(self.script, PROFILE / "job.sh")

    def log(self) -> str:
        """What the job's own log says."""
        return Path(LOG).read_text() if Path(LOG).exists() else ""


@pytest.fixture
def grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Grid:
    """A run in a fresh folder whose name has a space; each question is asked anew."""
    root = tmp_path / "a b"
    root.mkdir()
    monkeypatch.chdir(root)
    made = Grid(root)
    python = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{made.bin}:{python}:{os.environ['PATH']}")
    monkeypatch.setenv(executor.RUN, str(root / ".snakemake" / "uge" / "3f2a1b"))
    monkeypatch.setenv("SHARDWISE_RESULTS", str(root / "results"))
    monkeypatch.setattr(executor, "SNAPSHOT_SECONDS", -1)
    monkeypatch.setattr(executor, "_PAUSE_SECONDS", 0)
    return made


def test_a_submission(grid: Grid) -> None:
    """A unique name, the site's words, a script that leaves marks; and the run is noted."""
    assert grid.submit() == "11"
    words = (grid.bin / "words").read_text()
    assert f"-N {NAME.format(run='3f2a1b')} -v SHARDWISE_RESULTS,SHARDWISE_RUN -l gpu=1 " in words
    assert words.endswith(f"{PROFILE}/job.sh {grid.script} {grid.run}\n")
    assert "-o .snakemake/uge/3f2a1b/sw-3f2a1b-multiply-00007-2.out" in words
    grid.submit()
    noted = Results(Path("results")).runs.read_text().splitlines()
    assert [line.split("\t")[:2] for line in noted] == [["uge", "3f2a1b"]]


def test_old_runs_are_forgotten(grid: Grid) -> None:
    """What earlier runs have left goes after days; nothing of a run that is still followed."""
    old, young = (grid.run.with_name(name) for name in ("aaaaaa", "bbbbbb"))
    for folder in (old, young):
        folder.mkdir(parents=True)
        (folder / "1.job").touch()
    os.utime(old, (1e9, 1e9))
    grid.submit()
    assert sorted(path.name for path in grid.run.parent.iterdir()) == ["3f2a1b", "bbbbbb"]


def test_a_refusal_fails_at_once_with_qsubs_words(grid: Grid) -> None:
    """It stands in the log of the job too, where the last words of the run look."""
    grid.once("qsub", "echo 'Unable to run job: unknown resource \"gpux\"\nExiting.' >&2; exit 1")
    with pytest.raises(InputError, match=r'unknown resource "gpux"$'):
        grid.submit()
    assert "ERROR Grid Engine did not take the job: Unable to run job: unknown" in grid.log()
    assert len(grid.asked("qsub")) == 1
    assert list(grid.run.glob("*.submitting")) == []


def test_a_submission_waits_for_qmaster(grid: Grid, capsys: pytest.CaptureFixture[str]) -> None:
    """Where it does not answer, the same is tried again, with a message."""
    grid.once("qsub", f"echo '{AWAY}' >&2; exit 1")
    assert grid.submit() == "11"
    assert len(grid.asked("qsub")) == 2
    assert "Grid Engine does not take jobs now" in capsys.readouterr().err


@pytest.mark.fault("a scheduler that answers rubbish, or UNKNOWN")
@pytest.mark.parametrize("said", ["", "busy"])
def test_a_submission_that_answers_no_number_is_not_repeated(grid: Grid, said: str) -> None:
    """It may have arrived: the job is looked for by its name."""
    grid.once("qsub", f"echo '{said}'")
    grid.queue("qw")
    assert grid.submit() == "11"
    assert len(grid.asked("qsub")) == 1


@pytest.mark.fault("a full queue")
def test_a_submission_waits_for_room_in_the_queue(
    grid: Grid, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """However long that takes, as qmaster is there; nothing has arrived that had to be sought."""
    monkeypatch.setattr(executor, "AWAY_SECONDS", -1)
    grid.once("qsub", "echo 'job rejected: only 1 jobs are allowed per user' >&2; exit 25")
    assert grid.submit() == "11"
    assert (len(grid.asked("qsub")), grid.asked("qstat")) == (2, [])
    said = "the cluster takes no more jobs now (job rejected: only 1 jobs are allowed per user)"
    assert said in capsys.readouterr().err


def test_a_submission_that_arrived_unheard_is_not_repeated(grid: Grid) -> None:
    """Where only the answer was lost, the job is known by its name."""
    grid.run.mkdir(parents=True)
    grid.queue("qw")
    grid.once("qsub", "echo 'error: failed receiving gdi request response' >&2; exit 1")
    assert grid.submit() == "11"
    assert len(grid.asked("qsub")) == 1


def test_a_submission_that_arrived_and_ended_unheard_is_not_repeated(grid: Grid) -> None:
    """Where it has left the queue before qstat answers, it has left its number in the folder."""
    run = (
        f"JOB_ID=12 JOB_NAME={NAME.format(run='3f2a1b')} '{PROFILE}/job.sh' /dev/null '{grid.run}'"
    )
    grid.once("qsub", f"{run}; echo 'error: failed receiving gdi request response' >&2; exit 1")
    assert grid.submit() == "12"
    assert len(grid.asked("qsub")) == 1
    assert executor.status("12") == "success"


def test_a_qmaster_that_stays_away_fails_the_job(
    grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After minutes the job's log says why it was never submitted."""
    monkeypatch.setattr(executor, "AWAY_SECONDS", -1)
    grid.once("qsub", f"echo '{AWAY}' >&2; exit 1")
    with pytest.raises(TryAgain, match="got send error"):
        grid.submit()
    assert "got send error" in grid.log()
    assert len(list(grid.run.glob("*.submitting"))) == 1  # it may still arrive


@pytest.mark.parametrize(("code", "state"), [(0, "success"), (1, "failed")])
def test_a_mark_decides_without_a_question(grid: Grid, code: int, state: str) -> None:
    """What the job has written of its end is enough; its own error stays the last one."""
    number = grid.submit()
    (grid.run / f"{number}.exit").write_text(f"{code}\n")
    own = "2026-01-02 03:04:05,678 ERROR bad input\n"
    Path(LOG).parent.mkdir(parents=True)
    Path(LOG).write_text(own)
    assert executor.status(number) == state
    assert grid.asked("q") == grid.asked("qsub")
    assert grid.log() == own


def test_a_job_that_ended_before_its_log_began(grid: Grid) -> None:
    """A set-up line that fails is shown, not the error of an earlier attempt."""
    Path(LOG).parent.mkdir(parents=True)
    Path(LOG).write_text("2026-01-02 03:04:05,678 ERROR of the first attempt\n")
    os.utime(LOG, (1, 1))
    number = grid.submit()
    output = f"{NAME.format(run='3f2a1b')}.out"
    (grid.run / output).write_text("module: command not found\n\n")
    (grid.run / f"{number}.exit").write_text("1\n")
    assert executor.status(number) == "failed"
    assert "ERROR the job ended early and printed: module: command not found (" in grid.log()


@pytest.mark.parametrize("state", ["qw", "hqw", "t", "r", "dr", "s", "Rr"])
def test_a_job_in_the_queue_goes_on(grid: Grid, state: str) -> None:
    """Whatever it waits for there, and whatever the accounting has of an older job."""
    number = grid.submit()
    grid.queue(state, "n1" if "q" not in state else "")
    assert executor.status(number) == "running"
    assert grid.asked("qdel") == []


def test_a_job_that_cannot_start_fails_and_leaves(grid: Grid) -> None:
    """Eqw is the end: the reason is shown, and the job does not stay in the queue."""
    number = grid.submit()
    grid.queue("Eqw")
    (grid.bin / "reason").write_text("error reason  1:  1/2/26 3:04:05 [0:1]: error: no folder\n")
    assert executor.status(number) == "failed"
    assert "ERROR the scheduler says: it cannot start, state Eqw: error: no folder" in grid.log()
    assert grid.asked("qdel") == ["qdel 11"]
    assert executor.status(number) == "failed"
    assert grid.asked("qdel") == ["qdel 11"]


def test_a_job_is_running_until_it_is_deleted(
    grid: Grid, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where qdel gets no answer, the next look asks again: else the job would stay in the queue."""
    number = grid.submit()
    grid.queue("Eqw")
    grid.once("qdel", f"echo '{AWAY}' >&2; exit 1")
    assert executor.status(number) == "running"
    assert "job 11 cannot be deleted now (error: unable" in capsys.readouterr().err
    assert grid.log() == ""
    assert executor.status(number) == "failed"
    assert grid.asked("qdel") == ["qdel 11"] * 2


def test_a_job_is_lost_when_its_host_stays_silent(
    grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at once: after a restart of qmaster all hosts are silent for a time."""
    number = grid.submit()
    grid.queue("r", "n1", "au")
    assert executor.status(number) == "running"
    monkeypatch.setattr(executor, "UNHEARD_SECONDS", 0)
    assert executor.status(number) == "failed"
    assert "ERROR the scheduler says: lost: its host n1 is not heard of" in grid.log()
    assert grid.asked("qdel") == ["qdel 11"]


def test_a_host_that_is_heard_again_has_lost_nothing(
    grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its silence is counted from anew."""
    number = grid.submit()
    grid.queue("r", "n1", "u")
    executor.status(number)
    grid.queue("r", "n1")
    executor.status(number)
    monkeypatch.setattr(executor, "UNHEARD_SECONDS", 1e-9)
    grid.queue("r", "n1", "u")
    assert executor.status(number) == "running"


def test_a_qmaster_that_comes_and_goes_loses_no_job(
    grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each of its restarts all hosts are silent for a time; that is not one long silence."""
    monkeypatch.setattr(executor, "UNHEARD_SECONDS", 1e-9)
    number = grid.submit()
    grid.queue("r", "n1", "u")
    assert executor.status(number) == "running"
    grid.once("qstat", f"echo '{AWAY}' >&2; exit 1")
    assert executor.status(number) == "running"
    assert executor.status(number) == "running"
    assert grid.asked("qdel") == []


def test_a_job_that_left_without_a_mark(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    """The accounting says why at once; without it some seconds are given to the disk."""
    first = grid.submit()
    (grid.run / f"{NAME.format(run='3f2a1b')}.out").touch()
    assert executor.status(first) == "running"
    (grid.bin / "record").write_text(
        f"{'=' * 62}\njobname {NAME.format(run='3f2a1b')}\nfailed 100 : x\nexit_status 137\n"
    )
    assert executor.status(first) == "failed"
    assert "ERROR the scheduler says: deleted or killed (failed 100 : x), killed" in grid.log()
    (grid.bin / "record").unlink()
    (grid.run / f"{first}.exit").unlink()
    monkeypatch.setattr(executor, "_TRACE_SECONDS", 0)
    assert executor.status(first) == "failed"
    assert "deleted or killed; the accounting does not know it" in grid.log()


def test_a_job_that_was_deleted_before_it_ran(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has printed nothing, not even an empty file, and the accounting knows nothing of it."""
    monkeypatch.setattr(executor, "_NEVER_RAN_SECONDS", 0)
    assert executor.status(grid.submit()) == "failed"
    assert "ERROR the scheduler says: deleted while it waited in the queue" in grid.log()


def test_the_schedulers_word_does_not_hide_the_jobs_own(
    grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that found an error and was ended before it could leave a mark keeps its error.

    So does one that ended before qsub had returned.
    """
    monkeypatch.setattr(executor, "_NEVER_RAN_SECONDS", 0)
    grid.once(
        "qsub",
        f"cd ..; mkdir -p {Path(LOG).parent}; sleep 0.1; echo 11\n"
        f"echo '2026-01-02 03:04:05,678 ERROR matrix 9 holds NaN' >{LOG}; sleep 0.1",
    )
    number = grid.submit()
    assert executor.status(number) == "failed"
    assert "WARNING the scheduler says: deleted" in grid.log()


def test_no_job_fails_while_qmaster_is_away(
    grid: Grid, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It counts as running, with one message for all jobs, and qstat is left alone for a while."""
    number = grid.submit()
    monkeypatch.setattr(executor, "SNAPSHOT_SECONDS", 100)
    grid.once("qstat", f"echo '{AWAY}' >&2; exit 1")
    assert [executor.status(number) for _ in range(3)] == ["running"] * 3
    assert capsys.readouterr().err.count("Grid Engine does not answer") == 1
    assert len(grid.asked("qstat")) == 1


def test_one_answer_serves_all_questions(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a job that was submitted after it was asked has not left the queue."""
    number = grid.submit()
    monkeypatch.setattr(executor, "SNAPSHOT_SECONDS", 100)
    monkeypatch.setattr(executor, "_NEVER_RAN_SECONDS", 0)
    grid.queue("r", "n1")
    assert [executor.status(number) for _ in range(5)] == ["running"] * 5
    note = json.loads((grid.run / f"{number}.job").read_text())
    (grid.run / "12.job").write_text(json.dumps(note | {"submitted": time.time() + 1}))
    assert executor.status("12") == "running"
    assert len(grid.asked("qstat")) == 1


def test_a_job_of_no_run_has_failed(grid: Grid) -> None:
    """A number that nobody knows is not waited for."""
    assert executor.status("99") == "failed"


def command(grid: Grid, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script of the profile, as Snakemake does."""
    return subprocess.run(
        [PROFILE / name, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=grid.bin.parent,
    )


def test_the_shell_answers_for_most_jobs(grid: Grid) -> None:
    """Python is asked where the last answer is old, does not name the job, or the job has ended."""
    number = grid.submit()
    fine = grid.run / "fine"
    fine.write_text(f"{int(time.time()) + 1000}\n1\n{number}\n")
    done = command(grid, "status.sh", number)
    assert (done.returncode, done.stdout, done.stderr) == (0, "running\n", "")
    assert grid.asked("qstat") == []
    (grid.run / f"{number}.exit").write_text("0\n")
    assert command(grid, "status.sh", number).stdout == "success\n"
    (grid.run / f"{number}.exit").unlink()
    grid.queue("r", "n1")
    fine.write_text(f"0\n{number}\n")
    before = int(time.time())
    assert command(grid, "status.sh", number).stdout == "running\n"
    assert len(grid.asked("qstat")) == 1
    until, *named = fine.read_text().split()
    assert named == [number]
    assert before + 3 <= int(until) <= time.time() + 3


def test_a_job_that_is_back_in_the_queue_has_not_left_it(grid: Grid) -> None:
    """Python sees that, though the shell could answer: the next time it leaves is the first."""
    number = grid.submit()
    grid.queue("r", "n1")
    gone = grid.run / f"{number}.gone"
    gone.write_text("1")
    (grid.run / "fine").write_text(f"{int(time.time()) + 1000}\n{number}\n")
    assert command(grid, "status.sh", number).stdout == "running\n"
    assert not gone.exists()


def test_a_status_is_always_one_word(grid: Grid) -> None:
    """Whatever goes wrong with the files of the run, the run goes on; a line a minute says so."""
    grid.run.mkdir(parents=True)
    said = []
    for number in ("5", "6", "5"):
        (grid.run / f"{number}.job").mkdir(exist_ok=True)
        done = command(grid, "status.sh", number)
        assert (done.returncode, done.stdout) == (0, "running\n")
        said.append(done.stderr)
    assert (
        "the state of job 5, and maybe of others, cannot be found (IsADirectoryError: " in said[0]
    )
    assert said[1:] == ["", ""]
    os.utime(grid.run / "said.fault", (1, 1))
    assert "the state of job 6" in command(grid, "status.sh", "6").stderr


def test_a_file_of_the_run_that_is_not_whole_counts_as_missing(grid: Grid) -> None:
    """As a machine leaves it that lost its power: qstat is asked again, and the accounting."""
    number = grid.submit()
    for name in ("snapshot.json", f"{number}.exit"):
        (grid.run / name).touch()
    grid.queue("r", "n1")
    assert executor.status(number) == "running"
    assert len(grid.asked("qstat")) == 1


def test_the_command_line_of_a_submission(grid: Grid) -> None:
    """A number on stdout; or the reason on stderr, and an exit code."""
    done = command(grid, "submit.py", str(grid.script))
    assert (done.returncode, done.stdout) == (0, "11\n"), done.stderr
    grid.once("qsub", "echo no >&2; exit 1")
    done = command(grid, "submit.py", str(grid.script))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "shardwise: Grid Engine did not take a job: no\n"


def test_a_cancelled_run_leaves_nothing(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its jobs are deleted until the queue has none, and a qmaster that is away is waited for."""
    monkeypatch.setattr(executor, "_LOOK_SECONDS", 0)
    grid.submit()
    grid.queue("qw")
    grid.once("qstat", f"echo '{AWAY}' >&2; exit 1")
    executor.cancel(grid.run)
    assert grid.asked("qdel") == ["qdel 11"]
    assert len(grid.asked("qstat")) == 4  # away, one job, twice none


def test_the_wrapper_leaves_a_whole_mark(grid: Grid, tmp_path: Path) -> None:
    """0 or 1, whatever the script ends with: 99 and 100 would mean something to Grid Engine."""
    for code, mark in ((0, "0"), (3, "1"), (100, "1")):
        script = tmp_path / "with a space.sh"
        script.write_text(f"[ $JOB_ID = 4 ] && exit {code}")
        env = {**os.environ, "JOB_ID": "4", "JOB_NAME": "n"}
        done = subprocess.run([PROFILE / "job.sh", script, tmp_path], env=env, check=False)
        assert (str(done.returncode), (tmp_path / "4.exit").read_text()) == (mark, f"{mark}\n")
        assert not (tmp_path / "4.part").exists()


def test_a_run_begins_only_under_its_own_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The profile's commands work from any folder, with a space or braces in its name."""
    monkeypatch.delenv(executor.RUN, raising=False)
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setenv("SHARDWISE_RESULTS", "")
    left = []
    monkeypatch.setattr(executor.atexit, "register", lambda *call: left.append(call))
    other = SimpleNamespace(submit_cmd="qsub -V", status_cmd="x", cancel_cmd="qdel")
    for settings in (None, other):
        executor.begin(Results(tmp_path), settings, str(tmp_path), [])
    assert executor.RUN not in os.environ
    folder = tmp_path / "a {b}"
    folder.mkdir()
    (folder / "job.sh").touch()
    names = {"submit_cmd": "submit.py", "status_cmd": "status.sh", "cancel_cmd": "cancel.py"}
    own = SimpleNamespace(**{key: f"a {{b}}/{name}" for key, name in names.items()})
    executor.begin(Results(tmp_path), own, str(tmp_path), [])
    assert own.submit_cmd == f"'{tmp_path}/a {{{{b}}}}/submit.py'"
    assert own.status_cmd == f"'{folder}/status.sh'"
    assert own.cancel_cmd == f"{folder}/cancel.py"
    assert left == [(executor._leave, executor.folder(), folder / "cancel.py")]


@pytest.mark.parametrize("name", ['a"b', "a$HOME", "a`b`", "a\\b"])
def test_a_run_does_not_begin_where_a_shell_would_change_its_folders_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The plugin has a shell read the names of the jobs' scripts, between double quotes."""
    monkeypatch.delenv(executor.RUN, raising=False)
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    own = SimpleNamespace(submit_cmd="submit.py", status_cmd="status.sh", cancel_cmd="cancel.py")
    with pytest.raises(InputError, match=r"working directory holds .*Rename the folder"):
        executor.begin(Results(tmp_path), own, str(PROFILE), [])
    assert executor.RUN not in os.environ


def needed(rule: str, local: bool = False, **resources: object) -> SimpleNamespace:
    """A job of Snakemake's that is to run."""
    return SimpleNamespace(rule=SimpleNamespace(name=rule), is_local=local, resources=resources)


def test_what_grid_engine_does_not_know_is_refused_before_any_job(grid: Grid) -> None:
    """One job of each rule is shown to qsub, which submits none; the profile's line is named."""
    own = SimpleNamespace(submit_cmd="submit.py", status_cmd="status.sh", cancel_cmd="cancel.py")
    environment = needed("reduce", tasks=2, uge_p="-pe nope {ranks}", uge_time="-l h_rt=1")
    all_jobs = [needed("all", local=True), *[needed("multiply", uge_gpu="-l gpu=1")] * 2]
    said = 'job rejected: the requested parallel environment "nope" does not exist'
    grid.once("qsub", f"echo 'Unable to run job: {said}\nExiting.' >&2; exit 1")
    expected = (
        f"take the jobs of rule reduce: Unable to run job: {said} "
        '(from uge_p: "-pe nope {ranks}"); change it in '
    )
    with pytest.raises(InputError) as refused:
        executor.begin(Results(Path()), own, str(PROFILE), [environment, *all_jobs])
    assert expected in str(refused.value)
    assert str(refused.value).endswith("profiles/uge/config.yaml")
    assert grid.asked("qsub") == ["qsub -b y -pe nope 2 -l h_rt=1 -w v /bin/true"]


@pytest.mark.parametrize(
    "answer",
    [
        f"echo '{AWAY}' >&2; exit 1",
        'echo \'Unable to run job: Job 1 (-l mem_free=1M) cannot run in queue "a" because job '
        "requests unknown resource (mem_free)\nverification: no suitable queues' >&2; exit 1",
        "echo 'verification: found suitable queue(s)'; exit 0",
    ],
)
def test_hosts_that_are_away_or_busy_are_no_reason_to_refuse(grid: Grid, answer: str) -> None:
    """Nor is a qmaster that is: the jobs wait for all of them."""
    grid.once("qsub", answer)
    executor._verify([needed("multiply", uge_memory="-l mem_free=1M")], Path("config.yaml"))
    assert len(grid.asked("qsub")) == 1


@pytest.mark.parametrize(
    ("files", "cancelled"),
    [
        ([], False),
        (["1.job", "1.exit"], False),
        (["1.job", "1.exit", "2.job"], True),
        (["1.job", "1.exit", "sw-a.submitting"], True),
    ],
)
def test_what_has_no_end_is_deleted_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], cancelled: bool
) -> None:
    """Also a job whose submission was cut off; after a good run nothing is asked."""
    started = []
    monkeypatch.setattr(executor, "cancel_detached", started.append)
    for name in files:
        (tmp_path / name).touch()
    executor._leave(tmp_path, Path("cancel.py"))
    assert started == ([Path("cancel.py")] if cancelled else [])


@pytest.mark.parametrize("clients", ["uge", "away", "none"])
def test_a_run_does_not_start_beside_jobs_in_the_queue(
    grid: Grid, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, clients: str
) -> None:
    """It names the command that deletes them; without an answer it does not start either."""
    results = Results(Path("results"))
    claim.remember(results, "uge", "000000")  # has left nothing
    grid.submit()
    grid.queue("qw")
    if clients == "away":
        grid.once("qstat", f"echo '{AWAY}' >&2; exit 1")
    if clients == "none":
        monkeypatch.setenv("PATH", "/nowhere")
        return claim.refuse_beside_living(results)
    with pytest.raises(SystemExit, match="75"):
        claim.refuse_beside_living(results)
    expected = {
        "uge": "1 jobs of an earlier run still wait or work on results. Let them finish "
        "(see: qstat -u '*'), or cancel them (qdel 11)",
        "away": "qstat does not say whether jobs of an earlier run live",
    }
    assert expected[clients] in caplog.text
    assert grid.asked("qstat") == ["qstat -f -ne -u * -xml"]  # a colleague's jobs as well
    return None
