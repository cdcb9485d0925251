"""Arrays: rounds of tasks that a pretended scheduler starts."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from shardwise.errors import InputError, TryAgain
from shardwise.plan.plan import Plan
from shardwise.records import failures
from shardwise.work.schedulers import QueueFull, refusal

from tests import processes
from tests.factories import nightly
from tests.unit.work import test_pool
from tests.unit.work.test_pool import ended, is_right, planned

# A scheduler in a file: sbatch runs all tasks at once, waits, and ends with the worst code. It
# heeds no SIGTERM, as a client does that waits for a silent scheduler.
SBATCH = """#!{python}
import os, signal, subprocess, sys, time
from pathlib import Path
here = Path({here!r})
with open(here / "words", "a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
refusal = here / "refusal"
if refusal.exists():
    text = refusal.read_text()
    refusal.unlink()
    sys.exit(text)
print(len((here / "words").read_text().splitlines()), flush=True)
array = next(w for w in sys.argv if w.startswith("--array=1-"))
tasks = int(array[10:].partition("%")[0])
run = [subprocess.Popen(["bash", sys.argv[-1]], start_new_session=True,
       env=os.environ | {{"SLURM_ARRAY_TASK_ID": str(n)}}) for n in range(1, tasks + 1)]
name = next(w for w in sys.argv if w.startswith("--job-name=")).removeprefix("--job-")
(here / name).write_text("\\n".join(str(p.pid) for p in run))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while (here / "silent").exists():
    time.sleep(0.01)
codes = [p.wait() for p in run]
sys.exit(max(c if c >= 0 else 128 - c for c in codes))
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a pretended Slurm, whose commands come first on PATH."""
    folder = tmp_path / "site"
    path = processes.commands(
        folder,
        sbatch=SBATCH.format(python=sys.executable, here=str(folder)),
        scancel=f'#!/bin/sh\ncd {folder}; kill $(cat ./"${{1#--}}"); echo "$@" >>cancelled\n',
    )
    monkeypatch.setenv("PATH", path)
    return folder


def started(made: Plan, *words: str, setup: str = "") -> subprocess.Popen:
    """Start the local job of an array, whose tasks have more than enough devices."""
    own = ("--dispatch=array", "--scheduler=slurm", "--job=-t 1", f"--setup={setup}", *words)
    return test_pool.started(made, *own, devices=20)


def submitted(made: Plan, *words: str, code: int = 0, setup: str = "") -> str:
    """Compute what is missing by an array; return what its local job said."""
    return ended(started(made, *words, setup=setup), code)


def rounds_of(site: Path) -> list[str]:
    """The value of -t and the option --array of each submission."""
    lines = [line.split() for line in (site / "words").read_text().splitlines()]
    return [f"{line[1]} {line[6]}" for line in lines]


def test_an_array_has_as_many_tasks_as_shards_are_missing(tmp_path, site):
    """A second run has nothing to do and submits nothing; with two missing, it submits two."""
    made = planned(tmp_path)
    submitted(made, "--array-limit=5")
    assert is_right(made)
    assert rounds_of(site) == ["1 --array=1-12%5"]
    submitted(made)
    for shard in ("00002", "00007"):
        made.results.receipt(made.shards[shard].name).unlink()
    submitted(made, "--array-tasks=4")
    assert rounds_of(site) == ["1 --array=1-12%5", "1 --array=1-2"]
    assert is_right(made)
    assert not made.results.claims.exists()
    assert "slurm\tsw-" in made.results.runs.read_text()


@pytest.mark.fault("a worker or task that is killed")
def test_a_poison_shard_ends_the_rounds(tmp_path, site):
    """A shard that kills its whole task each time is lost; all others are computed."""
    made = planned(
        tmp_path, "if first == 8:\n    os.kill(os.getppid(), 9); os.kill(os.getpid(), 9)"
    )
    said = submitted(made, "--array-tasks=2", code=75)
    assert len(rounds_of(site)) <= 7
    assert "of 12 shards 1 were not computed" in said


@pytest.mark.fault("a full queue")
def test_a_full_queue_gets_half_as_many_tasks(tmp_path, site):
    """The refused submission, which is cancelled, does not end the next one."""
    made = planned(tmp_path)
    (site / "refusal").write_text("sbatch: error: AssocMaxSubmitJobLimit")
    assert "takes fewer tasks (AssocMaxSubmitJobLimit;" in submitted(made, "--array-tasks=4")
    assert rounds_of(site) == ["1 --array=1-4", "1 --array=1-2"]


@pytest.mark.fault("a full queue")
@pytest.mark.parametrize(("refusal", "code"), [
    ("AssocMaxSubmitJobLimit; wait for jobs to end, or lower jobs (profile), array_tasks", 75),
    ("invalid partition specified: nowhere", 2),
])  # fmt: skip
def test_a_submission_that_is_refused(tmp_path, site, refusal, code):
    """It ends with the scheduler's message, if it has one; only a full queue is worth a retry."""
    made = planned(tmp_path)
    (site / "refusal").write_text(f"sbatch: error: {refusal.partition(';')[0]}")
    assert refusal in submitted(made, "--array-tasks=1", code=code)
    noted = failures.read(made.results.failure(f"multiply-{made.key}"))
    assert (noted.code, noted.reason) == (code, refusal)


def test_tasks_that_cannot_begin_leave_their_logs(tmp_path, site):
    """The last words and the failure file say where; the failure goes once all is computed."""
    made = planned(tmp_path)
    said = submitted(made, "--array-tasks=1", code=75, setup="module load x")
    (own,) = made.results.root.glob("logs/array/*")
    assert f"the logs of the tasks are in {own}" in said
    assert all("module: command not found" in log.read_text() for log in own.glob("*.log"))
    noted = made.results.failure(f"multiply-{made.key}")
    assert str(own) in failures.read(noted).reason
    submitted(made)
    assert not noted.exists()


@pytest.mark.fault("a job that is cancelled, SIGTERM, Ctrl-C")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), nightly(signal.SIGINT, 130)])
def test_a_signal_cancels_the_array(tmp_path, site, number, code):
    """It is cancelled by name, as its number may not be known yet; its client is not waited for."""
    made = planned(tmp_path, "(HERE / 'at').touch()\nuntil((HERE / 'go').exists)")
    (site / "silent").touch()
    run = started(made, "--array-tasks=2")
    processes.until((tmp_path / "at").exists)
    run.send_signal(number)
    ended(run, code)
    cancelled = site / "cancelled"
    processes.until(lambda: cancelled.exists() and cancelled.read_text())
    assert cancelled.read_text().startswith("--name=sw-")
    (tmp_path / "go").touch()


@pytest.mark.parametrize(("text", "code", "kind"), [
    ("sbatch: error: Unable to contact slurm controller", 1, TryAgain),
    ("sbatch: error: QOSMaxSubmitJobPerUserLimit", 1, QueueFull),
    ("sbatch: error: Batch job submission failed: Invalid job array specification", 1, QueueFull),
    ("sbatch: error: QOSMaxGRESPerJob", 1, InputError),
    ("error: commlib error: got select error (Connection refused)", 1, TryAgain),
    ("job rejected: too many jobs", 25, QueueFull),
    ("job rejected: You try to submit a job with more than 10 tasks", 1, QueueFull),
    ('Unable to run job: unknown resource "gpux"', 1, InputError),
])  # fmt: skip
def test_refusals_are_told_apart(text, code, kind):
    """A silent scheduler, a full queue and a wrong request each have their own error."""
    assert type(refusal(text, code)) is kind
