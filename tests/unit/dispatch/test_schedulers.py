"""What schedulers print and are asked, by commands that are pretended."""

import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.dispatch import run_time
from shardwise.dispatch.schedulers import common, grid_engine, slurm
from shardwise.dispatch.schedulers.common import Array, Fate, Tasks
from shardwise.dispatch.schedulers.grid_engine import GridEngine
from shardwise.dispatch.schedulers.slurm import Slurm
from shardwise.errors import InputError, QueueFull, TryAgain

NUMBERS = st.sets(st.integers(0, 300), min_size=1).map(sorted)


@given(NUMBERS)
def test_ranges_are_read_as_they_are_written(numbers: list[int]) -> None:
    """Any ascending numbers survive the way into text and back."""
    assert list(common.numbers(common.ranges(numbers))) == numbers


def test_ranges_of_schedulers_are_understood() -> None:
    """Slurm's limit and brackets, and Grid Engine's steps."""
    assert list(common.numbers("[0-3,7%2]")) == [0, 1, 2, 3, 7]
    assert list(common.numbers("6-10:2,20,1:1")) == [6, 8, 10, 20, 1]
    with pytest.raises(ValueError, match=r"'0-\.\.\.' is no number"):
        list(common.numbers("5,0-..."))


SQUEUE = """\
7|2-3,7%2|sw-array-a-1|PENDING|JobArrayTaskLimit|
7|0|sw-array-a-1|RUNNING|None|gpu1
7|1|sw-array-a-1|COMPLETING|None|gpu2
8|4|sw-array-a-2|PENDING|JobHeldUser|
8|5|sw-array-a-2|PENDING|DependencyNeverSatisfied|
8|6|sw-array-a-2|PENDING|launch failed requeued held|
8|7|sw-array-a-2|PENDING|JobHoldMaxRequeue|
8|8|sw-array-a-2|PENDING|PartitionNodeLimit|
"""


def test_squeue_tells_who_waits_works_and_never_will() -> None:
    """Waiting tasks come together; some reasons to wait are none to wait for."""
    found = slurm.parse_tasks(SQUEUE.splitlines())
    assert found[0] == Tasks("7", "sw-array-a-1", (2, 3, 7))
    assert [task.where for task in found] == ["", "gpu1", "gpu2", *[""] * 5]
    assert [task.ending for task in found] == [False, False, True, *[False] * 5]
    assert [task.held for task in found] == [False, False, False, True, *[False] * 4]
    assert [bool(task.trouble) for task in found] == [*[False] * 4, True, True, True, False]
    assert [task.hopeless for task in found] == [*[False] * 4, True, False, False, False]


def test_squeue_tells_how_tasks_ended() -> None:
    """What Slurm did is certain; what the task itself did, its own files may yet tell."""
    lines = ["7|0|sw-1|NODE_FAIL|None|gpu1", "7|1|sw-1|FAILED|NonZeroExitCode|gpu2",
             "7|2|sw-1|COMPLETED|None|gpu2"]  # fmt: skip
    assert slurm.parse_fates(lines) == {
        ("sw-1", 0): Fate("NODE_FAIL on gpu1", True),
        ("sw-1", 1): Fate("FAILED on gpu2 (NonZeroExitCode)", False),
        ("sw-1", 2): Fate("COMPLETED on gpu2", False, well=True),
    }


@pytest.mark.fault("a scheduler that answers rubbish, or UNKNOWN")
@pytest.mark.parametrize("line", ["<html>busy</html>", "7|x-|sw-1|RUNNING|None|gpu1", "7|1|sw-1"])
def test_what_squeue_never_says_is_no_answer(line, tmp_path, monkeypatch):
    """Nothing is concluded from it, and it is asked again; no command to cancel is made of it."""
    (tmp_path / "squeue").write_text(f"#!/bin/sh\necho '{line}'\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(TryAgain, match=re.escape(f"squeue printed {line!r}")):
        Slurm().living(["sw-1"])
    for parse in (slurm.parse_tasks, slurm.parse_fates):
        with pytest.raises(TryAgain, match=re.escape(f"squeue printed {line!r}")):
            parse(["7|0|sw-1|COMPLETED|None|gpu2", line])


@pytest.mark.fault("a scheduler that answers rubbish, or UNKNOWN")
@pytest.mark.parametrize("said", ["", "try later\n"])
def test_a_submission_without_a_number_may_have_arrived(said, tmp_path, monkeypatch):
    """It is looked for, as one without an answer is."""
    for name in ("sbatch", "qsub"):
        (tmp_path / name).write_text(f"#!/bin/sh\nprintf '{said}'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for scheduler, command in ((Slurm(), "sbatch"), (GridEngine(), "qsub")):
        own = Array(command, "run", "d", "name", 1, (0,), 1)
        with pytest.raises(TryAgain, match=f"{command} answered {said.strip()!r}"):
            scheduler.submit(own, [], tmp_path / "task.sh", None)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("error: commlib error: got select error (Connection refused)", TryAgain),
        ("sbatch: error: Unable to contact slurm controller (connect failure)", TryAgain),
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: "
         "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
         QueueFull),
        ("sbatch: error: QOSMaxGRESPerJob\nsbatch: error: Batch job submission failed: Job "
         "violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
         InputError),
        ("sbatch: error: Batch job submission failed: Invalid partition name specified",
         InputError),
    ],
)  # fmt: skip
def test_refusals_are_told_apart(said: str, error: type, tmp_path: Path) -> None:
    """Away, full, or wrong: each is answered in its own way."""
    command = tmp_path / "sbatch"
    command.write_text(f"#!/bin/sh\ncat >&2 <<'E'\n{said}\nE\nexit 1\n")
    command.chmod(0o755)
    call = grid_engine.call if "commlib" in said else slurm.call
    with pytest.raises(error) as caught:
        call([str(command)], 10)
    assert type(caught.value) is error


def test_what_the_user_has_set_for_squeue_hides_no_task(tmp_path, monkeypatch):
    """Filters and formats in the environment are not ours; hidden partitions are asked for."""
    command = tmp_path / "squeue"
    command.write_text(f'#!/bin/sh\n{{ echo "$@"; env; }} >{tmp_path}/asked; echo 7_1\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for name in ("SQUEUE_STATES", "SQUEUE_PARTITION", "SCANCEL_STATE"):
        monkeypatch.setenv(name, "other")
    assert Slurm().living(["run"]) == ["7_1"]
    words, *env = (tmp_path / "asked").read_text().splitlines()
    assert "--all" in words.split()
    assert "SLURM_BITSTR_LEN=0" in env
    assert not [line for line in env if line.endswith("=other")]


QSTAT = """<job_info><queue_info><Queue-List><name>all.q@n1</name>{state}
<job_list><JB_job_number>5</JB_job_number><JB_name>sw-array-a-1</JB_name><state>r</state>
<tasks>2</tasks></job_list></Queue-List></queue_info><job_info>
<job_list><JB_job_number>5</JB_job_number><JB_name>sw-array-a-1</JB_name><state>qw</state>
<tasks>3-9:1</tasks></job_list>
<job_list><JB_job_number>6</JB_job_number><JB_name>sw-array-a-2</JB_name><state>Eqw</state>
<tasks>1</tasks></job_list>
<job_list><JB_job_number>9</JB_job_number><JB_name>sw-array-ab-2</JB_name><state>hqw</state>
<tasks>1</tasks></job_list>
</job_info></job_info>"""


def test_qstat_tells_who_waits_works_and_cannot_start() -> None:
    """Tasks of this dispatch only, by the name of their array; a silent host is seen."""
    found = grid_engine.listed(
        grid_engine.parse_queue(QSTAT.format(state="<state>au</state>")), ["array-a"]
    )
    assert found == [
        Tasks("5", "sw-array-a-1", (2,), where="n1", silent=True),
        Tasks("5", "sw-array-a-1", tuple(range(3, 10))),
        Tasks("6", "sw-array-a-2", (1,), trouble="it cannot start, state Eqw"),
    ]


@pytest.mark.fault("a scheduler that answers rubbish, or UNKNOWN")
@pytest.mark.parametrize("said", ["", "<html/>", "<job_info>"])
def test_what_qstat_never_says_is_no_answer(said: str) -> None:
    """An answer of somebody else, or half of one: no job has left the queue."""
    with pytest.raises(TryAgain, match="qstat printed"):
        grid_engine.parse_queue(said)


@pytest.mark.parametrize("said", ["17", "17.1-9:1\n", "a note of the site\n17\n"])
def test_qsub_tells_the_number_last(said: str) -> None:
    """Of a job, or of an array; a site's own script may print before it."""
    assert grid_engine.submitted(said) == "17"


@pytest.mark.parametrize(
    ("lines", "most"),
    [
        ("MaxArraySize = 4001", 4001),
        ("Other = 1", 1001),
        ("MaxArraySize = 4001\nSchedulerParameters = bf_continue,max_array_tasks=500,defer", 500),
        ("MaxArraySize = 401\nSchedulerParameters = max_array_tasks=500", 401),
        ("MaxArraySize = 0", None),
    ],
)
def test_slurm_s_largest_array_is_asked_for(tmp_path, monkeypatch, lines, most):
    """Where it says nothing of it, Slurm's own default counts; where it is 0, there are none."""
    command = tmp_path / "scontrol"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    command.write_text(f"#!/bin/sh\ncat <<'E'\n{lines}\nE\n")
    command.chmod(0o755)
    if most:
        assert Slurm().most_tasks() == most
    else:
        with pytest.raises(InputError, match="takes no array jobs"):
            Slurm().most_tasks()


@pytest.mark.parametrize(
    ("env", "number"),
    [
        ({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}, "7_2"),
        ({"SLURM_JOB_ID": "9"}, "9"),
    ],
)
def test_slurm_is_asked_for_this_very_task(tmp_path, monkeypatch, env, number):
    """The last task of an array has the number of the whole array, which has many ends."""
    for name in ("JOB", "ARRAY_JOB", "ARRAY_TASK"):
        monkeypatch.delenv(f"SLURM_{name}_ID", raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    command = tmp_path / "squeue"
    command.write_text(f'#!/bin/sh\necho "$*" > "{tmp_path}/asked"; echo 2026-11-23T17:00:00\n')
    command.chmod(0o755)
    end = run_time.of_this_job(None)._end
    assert f"--jobs={number}\n" in (tmp_path / "asked").read_text()
    assert end == time.mktime((2026, 11, 23, 17, 0, 0, 0, 0, -1))
    command.write_text("#!/bin/sh\necho N/A\n")
    assert run_time.of_this_job(None).suffices(10**9), "without a limit all fits"


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        (["-l", "h_rt=120"], 120),
        (["-l", "gpu=1,h_rt=1:02:03"], 3723),
        (["-l", "s_rt=0:1:0,h_rt=120"], 60),
        (["-l", "gpu=1"], None),
    ],
)
def test_grid_engine_s_limit_is_read(words: list[str], seconds: float | None) -> None:
    """The hard or the soft limit of run time, whichever comes first."""
    assert GridEngine().run_time(words) == seconds
