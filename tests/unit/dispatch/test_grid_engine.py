"""Grid Engine's words and answers: what qsub is asked, and what qstat and qacct say."""

import pytest
from shardwise.dispatch.schedulers import grid_engine
from shardwise.dispatch.schedulers.grid_engine import AccountingRecord, Job
from shardwise.errors import InputError

# Of Grid Engine 8.1.9, shortened: a job on two hosts, one of which is silent; one that was deleted
# there; an array, one task of which runs; jobs that wait, are held, and cannot start.
QSTAT = """<job_info><queue_info>
<Queue-List><name>all.q@n1</name>
  <job_list><JB_job_number>2</JB_job_number><JB_name>sw-3f2a1b-reduce</JB_name><state>r</state>
    <slots>2</slots></job_list>
  <job_list><JB_job_number>9</JB_job_number><JB_name>arr</JB_name><state>t</state>
    <tasks>5</tasks></job_list></Queue-List>
<Queue-List><name>all.q@n2.site</name><state>au</state>
  <job_list><JB_job_number>2</JB_job_number><JB_name>sw-3f2a1b-reduce</JB_name><state>r</state>
    </job_list>
  <job_list><JB_job_number>4</JB_job_number><JB_name>sw-3f2a1b-multiply-00001</JB_name>
    <state>dr</state></job_list></Queue-List>
</queue_info><job_info>
  <job_list><JB_job_number>7</JB_job_number><JB_name>sw-3f2a1b-multiply-00002</JB_name>
    <state>Eqw</state></job_list>
  <job_list><JB_job_number>9</JB_job_number><JB_name>arr</JB_name><state>qw</state>
    <tasks>6-20:1</tasks></job_list>
  <job_list><JB_job_number>8</JB_job_number><JB_name>sw-00aa11-shard-00000</JB_name>
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
    """Every job once, with all its hosts; the tasks of an array by their states."""
    queue = grid_engine.parse_queue(QSTAT)
    assert queue.unheard == {"n2.site"}
    assert queue.job("2") == Job("2", "sw-3f2a1b-reduce", "r", ("n1", "n2.site"))
    assert queue.job("7") == Job("7", "sw-3f2a1b-multiply-00002", "Eqw")
    assert [(job.state, job.tasks) for job in queue.jobs if job.number == "9"] == [
        ("t", "5"),
        ("qw", "6-20:1"),
    ]
    assert queue.job("1") is None
    # Nothing more can be done for job 4.
    assert [job.number for job in queue.named("3f2a1b")] == ["2", "7"]


@pytest.mark.parametrize(
    ("failed", "status", "words"),
    [
        (
            "100 : assumedly after job",
            "137                  (Killed)",
            "deleted or killed (failed 100 : assumedly after job), killed by signal 9",
        ),
        (
            "37  : qmaster enforced h_rt, h_cpu, or h_vmem limit",
            "137                  (Killed)",
            "it passed its limit of run time or memory "
            "(failed 37 : qmaster enforced h_rt, h_cpu, or h_vmem limit), killed by signal 9",
        ),
        (
            "19  : before writing exit_status",
            "0",
            "it failed (failed 19 : before writing exit_status)",
        ),
        ("0", "3", "exit status 3"),
        (
            "0",
            "0",
            "it ended well, but the mark of its end has not arrived: is the disk of the working "
            "directory full, or not shared with the hosts?",
        ),
    ],
)
def test_a_record_of_the_accounting_in_words(failed: str, status: str, words: str) -> None:
    """The record of this job, and not of another one that had its number."""
    record = grid_engine.parse_record(
        QACCT.format(failed=failed, status=status), "sw-3f2a1b-multiply-00000"
    )
    assert record is not None
    assert grid_engine.describe(record) == words
    assert (
        grid_engine.parse_record(QACCT.format(failed=failed, status=status), "sw-3f2a1b-x") is None
    )


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
