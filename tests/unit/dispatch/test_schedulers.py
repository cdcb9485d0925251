"""What schedulers print and are asked, by commands that are pretended."""

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.dispatch import run_time
from shardwise.dispatch.schedulers import common, grid_engine, slurm
from shardwise.dispatch.schedulers.common import Array, Fate, QueueFull, Tasks
from shardwise.dispatch.schedulers.grid_engine import AccountingRecord, GridEngine, Job
from shardwise.dispatch.schedulers.slurm import Slurm
from shardwise.errors import InputError, TryAgain

NUMBERS = st.sets(st.integers(0, 300), min_size=1).map(sorted)


@pytest.fixture
def pretend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Put a shell script in the place of a scheduler's command."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def write(name: str, script: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)

    return write


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
def test_what_squeue_never_says_is_no_answer(line, pretend):
    """Nothing is concluded from it, and it is asked again; no command to cancel is made of it."""
    pretend("squeue", f"echo '{line}'")
    with pytest.raises(TryAgain, match=re.escape(f"squeue printed {line!r}")):
        Slurm().living(["sw-1"])
    for parse in (slurm.parse_tasks, slurm.parse_fates):
        with pytest.raises(TryAgain, match=re.escape(f"squeue printed {line!r}")):
            parse(["7|0|sw-1|COMPLETED|None|gpu2", line])


@pytest.mark.fault("a scheduler that answers rubbish, or UNKNOWN")
@pytest.mark.parametrize("said", ["", "try later\n"])
def test_a_submission_without_a_number_may_have_arrived(said, pretend):
    """It is looked for, as one without an answer is."""
    for scheduler, command in ((Slurm(), "sbatch"), (GridEngine(), "qsub")):
        pretend(command, f"printf '{said}'")
        own = Array(command, "run", "d", "name", 1, (0,), 1)
        with pytest.raises(TryAgain, match=f"{command} answered {said.strip()!r}"):
            scheduler.submit(own, [], Path("task.sh"), None)


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
def test_refusals_are_told_apart(said, error, pretend):
    """Away, full, or wrong: each is answered in its own way."""
    pretend("sbatch", f"cat >&2 <<'E'\n{said}\nE\nexit 1")
    call = grid_engine.call if "commlib" in said else slurm.call
    with pytest.raises(error) as caught:
        call(["sbatch"], 10)
    assert type(caught.value) is error


def test_what_the_user_has_set_for_squeue_hides_no_task(tmp_path, monkeypatch, pretend):
    """Filters and formats in the environment are not ours; hidden partitions are asked for."""
    pretend("squeue", f'{{ echo "$@"; env; }} >{tmp_path}/asked; echo 7_1')
    for name in ("SQUEUE_STATES", "SQUEUE_PARTITION", "SCANCEL_STATE"):
        monkeypatch.setenv(name, "other")
    assert Slurm().living(["run"]) == ["7_1"]
    words, *env = (tmp_path / "asked").read_text().splitlines()
    assert "--all" in words.split()
    assert "SLURM_BITSTR_LEN=0" in env
    assert not [line for line in env if line.endswith("=other")]


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
def test_slurm_s_largest_array_is_asked_for(pretend, lines, most):
    """Where it says nothing of it, Slurm's own default counts; where it is 0, there are none."""
    pretend("scontrol", f"cat <<'E'\n{lines}\nE")
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
def test_slurm_is_asked_for_this_very_task(tmp_path, monkeypatch, pretend, env, number):
    """The last task of an array has the number of the whole array, which has many ends."""
    for name in ("JOB", "ARRAY_JOB", "ARRAY_TASK"):
        monkeypatch.delenv(f"SLURM_{name}_ID", raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    pretend("squeue", f'echo "$*" > "{tmp_path}/asked"; echo 2026-11-23T17:00:00')
    end = run_time.of_this_job(None)._end
    assert f"--jobs={number}\n" in (tmp_path / "asked").read_text()
    assert end == time.mktime((2026, 11, 23, 17, 0, 0, 0, 0, -1))
    pretend("squeue", "echo N/A")
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


# Grid Engine.

# Of 8.1.9, shortened: a job on two hosts, one of which is silent; one that was deleted there; an
# array, one task of which runs; jobs that wait, are held, and cannot start.
QSTAT = """<job_info><queue_info>
<Queue-List><name>all.q@n1</name>
  <job_list><JB_job_number>2</JB_job_number><JB_name>sw-3f2a1b-reduce</JB_name><state>r</state>
    <slots>2</slots></job_list>
  <job_list><JB_job_number>9</JB_job_number><JB_name>sw-9-1</JB_name><state>t</state>
    <tasks>5</tasks></job_list></Queue-List>
<Queue-List><name>all.q@n2.site</name><state>au</state>
  <job_list><JB_job_number>2</JB_job_number><JB_name>sw-3f2a1b-reduce</JB_name><state>r</state>
    </job_list>
  <job_list><JB_job_number>4</JB_job_number><JB_name>sw-3f2a1b-multiply-00001</JB_name>
    <state>dr</state></job_list></Queue-List>
</queue_info><job_info>
  <job_list><JB_job_number>7</JB_job_number><JB_name>sw-3f2a1b-multiply-00002</JB_name>
    <state>Eqw</state></job_list>
  <job_list><JB_job_number>9</JB_job_number><JB_name>sw-9-1</JB_name><state>qw</state>
    <tasks>6-20:1</tasks></job_list>
  <job_list><JB_job_number>8</JB_job_number><JB_name>sw-99-shard-00000</JB_name>
    <state>hqw</state></job_list>
</job_info></job_info>"""

# Numbers begin again at 1 some day: the accounting then has two jobs of one number.
QACCT = """==============================================================
qname        all.q
hostname     localhost
jobname      another
jobnumber    3
taskid       undefined
failed       0
exit_status  0
==============================================================
qname        all.q
hostname     localhost
jobname      sw-3f2a1b-multiply-00000
jobnumber    3
taskid       undefined
failed       {failed}
exit_status  {status}
category     -l gpu=2
"""

PROPERTIES = {
    "rule": "multiply",
    "wildcards": {"shard": "00007"},
    "log": ["results/logs/multiply/00007.log"],
    "resources": {
        **{"mem_mb": 1411, "runtime": 10, "tasks": 1, "tmpdir": "/tmp", "disk_mb": 1000},
        "uge_time": "-l h_rt={seconds}",
        "uge_memory": "-l mem_free={mib}M",
        "uge_gpu": "-l gpu=1 -l 'model=H 200'",
        "uge_queue": "",
    },
}


def test_the_words_of_a_job() -> None:
    """What the project always asks for, then what the profile does, in the order of its names."""
    name = grid_engine.job_name("3f2a1b", PROPERTIES, 1)
    assert name == "sw-3f2a1b-multiply-00007"
    words = grid_engine.qsub_words(
        PROPERTIES, name, ".snakemake/a.out", {"SHARDWISE_B", "SHARDWISE_A"}
    )
    assert words == [
        *("qsub", "-terse", "-cwd", "-b", "n", "-r", "n", "-S", "/bin/bash", "-m", "n", "-j", "y"),
        *("-o", ".snakemake/a.out", "-N", "sw-3f2a1b-multiply-00007"),
        *("-v", "SHARDWISE_A,SHARDWISE_B"),
        *("-l", "gpu=1", "-l", "model=H 200", "-l", "mem_free=1411M", "-l", "h_rt=600"),
    ]


def test_a_name_has_nothing_that_grid_engine_refuses() -> None:
    """Each attempt has a name of its own, and wildcards may hold anything."""
    odd = {"rule": "r", "wildcards": {"a": "x/y:z @*"}}
    assert grid_engine.job_name("0", odd, 2) == "sw-0-r-x_y_z___-2"


@pytest.mark.parametrize(
    ("environment", "slots", "each"),
    [
        ("-pe mpi {ranks}", "3", 334),
        ("-q a -pe mpi 4-8", "4-8", 250),
        ("-pe mpi -8", "-8", 1000),
        ("", None, 1000),
    ],
)
def test_memory_a_slot_follows_from_the_slots(environment, slots, each):
    """Of a range of slots the least counts, and nothing is rounded down."""
    resources = {"uge_a": "-l m={mib_per_slot}M", "uge_b": environment, "mem_mb": 1000, "tasks": 3}
    words = grid_engine.site_words(resources)
    assert words[:2] == ["-l", f"m={each}M"]
    assert (words[-1] if slots else None) == slots


@pytest.mark.parametrize("text", ["-l a={second}", "-l a={mib}M", "-l 'a", "-l a={", "-l a={0}"])
def test_a_line_of_the_profile_that_cannot_be_filled_in_is_named(text: str) -> None:
    """An unknown placeholder, a value that the job has not, and a quote without its end."""
    with pytest.raises(InputError, match=r"uge_x: .* this job knows \{seconds\}"):
        grid_engine.site_words({"uge_x": text, "runtime": 1})


def test_an_answer_of_qstat() -> None:
    """Every job once, with all its hosts; the tasks of an array by their states.

    Of these dispatches only, by the names of their arrays; a silent host is seen.
    """
    queue = grid_engine.parse_queue(QSTAT)
    assert queue.unheard == {"n2.site"}
    assert queue.job("2") == Job("2", "sw-3f2a1b-reduce", "r", ("n1", "n2.site"))
    assert queue.job("7") == Job("7", "sw-3f2a1b-multiply-00002", "Eqw")
    assert queue.job("1") is None
    # Nothing more can be done for job 4.
    assert [job.number for job in queue.named("3f2a1b")] == ["2", "7"]
    assert grid_engine.listed(queue, ["3f2a1b", "9"]) == [
        Tasks("2", "sw-3f2a1b-reduce", (), where="n1, n2.site", silent=True),
        Tasks("7", "sw-3f2a1b-multiply-00002", (), trouble="it cannot start, state Eqw"),
        Tasks("9", "sw-9-1", (5,), where="n1"),
        Tasks("9", "sw-9-1", tuple(range(6, 21))),
    ]
    assert [tasks.held for tasks in grid_engine.listed(queue, ["99"])] == [True]


@pytest.mark.parametrize(
    ("failed", "status", "words"),
    [
        ("100 : assumedly after job", "137                  (Killed)",
         "deleted or killed (failed 100 : assumedly after job), killed by signal 9"),
        ("37  : qmaster enforced h_rt, h_cpu, or h_vmem limit", "137                  (Killed)",
         "it passed its limit of run time or memory (failed 37 : qmaster enforced h_rt, h_cpu, or "
         "h_vmem limit), killed by signal 9"),
        ("19  : before writing exit_status", "0",
         "it failed (failed 19 : before writing exit_status)"),
        ("0", "3", "exit status 3"),
        ("0", "0", "it ended well, but the mark of its end has not arrived: is the disk of the "
                   "working directory full, or not shared with the hosts?"),
    ],
)  # fmt: skip
def test_a_record_of_the_accounting_in_words(failed: str, status: str, words: str) -> None:
    """The record of this job, and not of another one that had its number."""
    text = QACCT.format(failed=failed, status=status)
    record = grid_engine.parse_record(text, "sw-3f2a1b-multiply-00000")
    assert record is not None
    assert grid_engine.describe(record) == words
    assert grid_engine.parse_record(text, "sw-3f2a1b-x") is None


def test_a_failed_record_is_not_hidden_by_another_host_of_the_job() -> None:
    """Where each host has a record of its own, they come in any order."""
    name = "sw-3f2a1b-multiply-00000"
    failed, well = QACCT.format(failed="37 : x", status="137"), QACCT.format(failed=0, status=0)
    for text in (failed + well, well + failed):
        assert grid_engine.parse_record(text, name) == AccountingRecord("37 : x", 137)


@pytest.mark.parametrize("line", ["failed       {failed}\n", "exit_status  {status}\n", "{status}"])
def test_a_record_that_was_cut_off_is_none(line: str) -> None:
    """A field that is missing, or empty, says nothing of the job's end."""
    text = QACCT.replace(line, "").format(failed="37", status="0")
    assert grid_engine.parse_record(text, "sw-3f2a1b-multiply-00000") is None


def test_why_a_job_cannot_start() -> None:
    """The reason, without the date and the process before it."""
    text = "error reason    1:  11/21/2026 17:16:06 [0:13029]: error: can't chdir to /nowhere: No\n"
    assert grid_engine.parse_error(text) == "error: can't chdir to /nowhere: No"
    assert grid_engine.parse_error("").startswith("no reason given")
