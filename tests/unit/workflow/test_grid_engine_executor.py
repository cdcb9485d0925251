"""A run under Grid Engine, whose commands are pretended: submission and states.

How a run begins and ends is tested in tests/clusters.
"""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from shardwise.files.paths import Results
from shardwise.workflow import grid_engine_executor as executor
from shardwise.workflow import preflight

from tests.factories import refusal

AWAY = 'error: unable to send message to qmaster using port 6444 on host "h": got send error'
SILENT = f"echo '{AWAY}' >&2; exit 1"
UNHEARD = "echo 'error: failed receiving gdi request response' >&2; exit 1"
KEY = "a" * 12
NAME = f"sw-3f2a1b-multiply-00007-{KEY}-2"

# Each command runs the script NAME.once, if there is one, a single time; else its last line.
CLIENT = """#!/bin/sh
cd "{folder}"
name=${{0##*/}}
echo "$name $*" >>asked
if [ -e "$name.once" ]; then mv "$name.once" once; . ./once; fi
{otherwise}
"""
OTHERWISE = {"qsub": "echo 11", "qstat": "cat queue", "qdel": "echo '<job_info/>' >queue"}
QUEUED = f"""<job_list><JB_job_number>11</JB_job_number><state>{{}}</state>
<JB_name>{NAME}</JB_name></job_list>"""


def job(**resources: object) -> Any:
    """A job of Snakemake at its second try."""
    return SimpleNamespace(
        rule=SimpleNamespace(name="multiply", restart_times=2), attempt=2, name="multiply",
        resources=resources, wildcards_dict={"shard": "00007", "key": KEY},
    )  # fmt: skip


class Grid:
    """Grid Engine's commands, pretended, and one run in this folder with one job."""

    def __init__(self, root: Path) -> None:
        self.bin, self.run = root / "bin", root / ".snakemake" / "uge" / "3f2a1b"
        self.bin.mkdir()
        for name, otherwise in OTHERWISE.items():
            (self.bin / name).write_text(CLIENT.format(folder=self.bin, otherwise=otherwise))
            (self.bin / name).chmod(0o755)
        self.queue("")
        self.told: list[str] = []  # as the job's failure
        run = SimpleNamespace(results=Results(Path("results")))
        run.failures_of = lambda job, error: self.told.append(f"{job.name}: {error}")
        self.run.mkdir(parents=True)
        self.submissions = executor.Submissions(self.run)
        self.submissions.runs.append(run)
        self.job = SimpleNamespace(external_jobid=None, job=job(uge_gpu="-l gpu=1"))

    def once(self, name: str, script: str) -> None:
        """Let the next call of a command do this."""
        (self.bin / f"{name}.once").write_text(script)

    def asked(self, name: str) -> list[str]:
        """The calls of a command, each as one line."""
        asked = self.bin / "asked"
        lines = asked.read_text().splitlines() if asked.exists() else []
        return [line for line in lines if line.startswith(name)]

    def queue(self, state: str, host: str = "", silent: bool = False) -> None:
        """Let qstat know job 11 in a state, on a host; or no job."""
        text = QUEUED.format(state) if state else ""
        if host:
            mark = "au" * silent
            text = f"<Queue-List><name>q@{host}</name><state>{mark}</state>{text}</Queue-List>"
        top = "queue_info" if host else "job_info"
        (self.bin / "queue").write_text(f"<job_info><{top}>{text}</{top}></job_info>")

    def submit(self) -> str:
        self.job.external_jobid, refused = self.submissions.submit(self.job.job, "job.sh")
        return self.job.external_jobid or refused

    def look(self, jobs: int = 1) -> str:
        """What Snakemake is told of the job, and of others like it."""
        (state,) = {state for _, state in self.submissions.look([self.job] * jobs)}
        return state


@pytest.fixture
def grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Grid:
    """A run in a fresh folder whose name has a space."""
    root = tmp_path / "a b"
    (root / "results" / "logs").mkdir(parents=True)  # as a run has it, for its lock
    monkeypatch.chdir(root)
    monkeypatch.setenv("PATH", f"{root / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(executor, "_PAUSE_SECONDS", 0)
    return Grid(root)


def test_a_submission_that_is_refused(grid):
    """The reason has qsub's message; no job of this name will arrive."""
    grid.once("qsub", "echo 'Unable to run job: unknown resource \"gpux\"\nExiting.' >&2; exit 1")
    assert grid.submit() == (words := 'Unable to run job: unknown resource "gpux"')
    assert f"the jobs of rule multiply: {words}; change the block multiply" in grid.told[0]
    assert len(grid.asked("qsub")) == 1
    assert not grid.submissions._unended


RUBBISH = pytest.mark.fault("a scheduler that answers rubbish, or UNKNOWN")


@pytest.mark.fault("a submission that fails k times")
@pytest.mark.parametrize(("answer", "arrived", "asked"), [
    pytest.param(SILENT, "", 2, id="away"),
    pytest.param("echo; exit", "queue", 1, id="no-number", marks=RUBBISH),
    pytest.param("echo busy; exit", "queue", 1, id="rubbish", marks=RUBBISH),
    pytest.param(UNHEARD, "queue", 1, id="arrived"),
])  # fmt: skip
def test_a_submission_waits_for_qmaster_and_is_never_repeated(grid, capsys, answer, arrived, asked):
    """A job that may have arrived is looked for by name."""
    grid.once("qsub", answer)
    if arrived == "queue":
        grid.queue("qw")
    assert grid.submit() == "11"
    assert len(grid.asked("qsub")) == asked
    assert "Grid Engine accepts no job now" in capsys.readouterr().err


@pytest.mark.parametrize(("code", "mark"), [(0, "0"), (3, "1"), (100, "1")])
def test_a_mark_decides_though_qmaster_is_away(grid, code, mark):
    """The wrapper exits with 0 or 1, as 99 and 100 have a meaning for Grid Engine."""
    number = grid.submit()
    script = grid.bin / "job.sh"
    ends = f"[ $JOB_ID = {number} ] && exit {code}"
    script.write_text(executor.JOBSCRIPT.replace("{script}", ends))
    env = {**os.environ, "JOB_ID": number, "JOB_NAME": NAME}
    done = subprocess.run(["bash", script, grid.run], env=env, check=False)
    assert str(done.returncode) == mark
    grid.once("qstat", SILENT)
    assert (grid.look() == "success", len(grid.told)) == (code == 0, code != 0)
    assert not grid.submissions._unended


@pytest.mark.parametrize("state", ["qw", "t", "dr", "Rr"])
def test_a_job_in_the_queue_goes_on(grid: Grid, state: str) -> None:
    """One answer serves all jobs; a mark that is still empty does not count."""
    number = grid.submit()
    (grid.run / f"{number}.exit").touch()
    grid.queue(state, "n1" if "q" not in state else "")
    grid.submissions._seen[number] = 0.0  # long ago
    assert grid.look(jobs=5) == "running"
    assert len(grid.asked("qstat -f")) == 1
    (grid.run / f"{number}.exit").write_text("1\n")
    assert grid.look() == (why := f"that it ended: see {grid.run / NAME}.out")
    assert grid.told == [f"multiply: the scheduler says {why}"]


GONE = "killed, deleted, lost, or past a limit (see: qacct -j 11)"


@pytest.mark.parametrize(("queued", "why"), [
    (("",), GONE), (("r", "n1", True), GONE), (("Eqw",), "it cannot start: chdir: no such folder"),
])  # fmt: skip
def test_a_job_that_will_not_end_by_itself_is_lost_after_a_while(grid, queued, why):
    """Its mark may be late, or its host come back; none is lost while qmaster is away."""
    number = grid.submit()
    grid.queue(*queued)
    if "E" in queued[0]:  # in a comment of the XML, as one file serves all calls of qstat
        with open(grid.bin / "queue", "a") as file:
            file.write("<!--\nerror reason    1:      chdir: no such folder\n-->")
    assert grid.look() == "running"
    grid.submissions._seen[number] = 0.0  # long ago
    grid.once("qstat", SILENT)
    assert grid.look() == "running"
    grid.submissions._seen[number] = 0.0
    assert grid.look() == why
    assert grid.told == [f"multiply: the scheduler says {why}"]
    assert grid.asked("qdel") == ["qdel 11"] * bool(queued[0])  # one that has left needs none


def test_no_job_fails_while_its_state_cannot_be_found(grid, capsys):
    """Neither if qmaster is away nor if the disk is; one message for each says so."""
    grid.submit()
    grid.once("qstat", SILENT)
    assert grid.look(jobs=3) == "running"
    grid.run.rename(grid.run.with_name("away"))
    assert [grid.look(jobs=2) for _ in range(2)] == ["running"] * 2
    assert capsys.readouterr().err.count("Grid Engine does not answer") == 2


def test_hosts_that_are_away_or_busy_are_no_reason_to_refuse(grid, monkeypatch):
    """Nor is a qmaster that is away: the jobs wait for both. Without qsub, none would start."""
    busy = "echo 'cannot run in queue a because job requests unknown resource (mem_free)'"
    for answer in (SILENT, f"{busy} >&2; exit 1"):
        grid.once("qsub", answer)
        preflight.verify("uge", job(uge_memory="-l mem_free=1M"), None)
    assert len(grid.asked("qsub")) == 2
    monkeypatch.setenv("PATH", "/nowhere")
    assert "qsub is not on PATH here" in refusal(preflight.verify, "uge", job(), None)
