"""Arrays: what is noted, cut, read; the script of a task; dispatches on a pretended scheduler."""

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.dispatch.array import follow, journal, recipe, task
from shardwise.dispatch.schedulers import common, grid_engine, slurm
from shardwise.dispatch.schedulers.common import Array, Fate, Tasks
from shardwise.dispatch.schedulers.grid_engine import GridEngine
from shardwise.dispatch.schedulers.registry import SCHEDULERS
from shardwise.dispatch.schedulers.slurm import Slurm
from shardwise.errors import InputError, IntegrityError, QueueFull, TryAgain
from shardwise.files.paths import Results
from shardwise.records import missing, receipts

from tests import factories

NUMBERS = st.sets(st.integers(0, 300), min_size=1).map(sorted)


# Texts.


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


def test_a_line_that_was_cut_off_hides_no_other(tmp_path: Path) -> None:
    """A crash in the middle of a note: the arrays before and after it are read."""
    results = Results(tmp_path)
    one = Array("slurm", "array-1", "d", "sw-array-1-1", 1, 0, (0, 1, 5), 3)
    two = Array("slurm", "array-2", "d", "sw-array-2-1", 2, 5, (5, 7), 2)
    assert journal.noted(results) == []
    journal.note(results, one)
    with open(results.arrays, "a") as file:
        file.write("slurm\tarray-9\td")
    journal.note(results, two)
    assert journal.noted(results) == [one, two]


@given(NUMBERS, st.integers(1, 50), st.integers(1, 50))
def test_slurm_arrays_hold_every_shard_once(numbers: list[int], most: int, limit: int) -> None:
    """Cut after cut, each shard comes once, and every index is below the cluster's limit."""
    found, left = [], list(numbers)
    while left:
        first, taken = Slurm().cut(left, most, limit)
        own = Array("slurm", "run", "d", "name", 1, first, taken, len(taken))
        assert taken == tuple(left[: len(taken)])
        assert 0 < len(taken) <= limit
        assert all(0 <= index < most for index in Slurm().indices(own))
        found += taken
        del left[: len(taken)]
    assert found == numbers


def test_slurm_indices_are_the_plan_s_where_they_fit() -> None:
    """So that task 17 is shard 00017; only beyond MaxArraySize they count from the first one."""
    assert Slurm().cut([2, 17, 900], 1001, 1001) == (0, (2, 17, 900))
    assert Slurm().cut([900, 1000, 1001, 1901, 1902], 1001, 1001) == (900, (900, 1000, 1001))
    assert Slurm().cut([1901, 1902], 1001, 1001) == (1901, (1901, 1902))
    assert Slurm().cut([2, 700, 900], 1001, 2) == (0, (2, 700))


def test_a_long_list_of_indices_is_cut_to_what_a_command_takes() -> None:
    """Every other one of 100,000 shards in a cluster without limit: arguments stay short."""
    numbers = list(range(0, 100_000, 2))
    _, taken = Slurm().cut(numbers, 10**6, 10**6)
    assert 1000 < len(taken) < len(numbers)
    assert len(common.ranges(taken)) <= 16_000


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
        own = Array(command, "run", "d", "name", 1, 0, (0,), 1)
        with pytest.raises(TryAgain, match=f"{command} answered {said.strip()!r}"):
            scheduler.submit(own, [], tmp_path / "task.sh", None)


@pytest.mark.parametrize(
    ("said", "error"),
    [
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
def test_slurm_s_refusals_are_told_apart(said: str, error: type, tmp_path: Path) -> None:
    """Away, full, or wrong: each is answered in its own way."""
    command = tmp_path / "sbatch"
    command.write_text(f"#!/bin/sh\ncat >&2 <<'E'\n{said}\nE\nexit 1\n")
    command.chmod(0o755)
    with pytest.raises(error) as caught:
        slurm.call([str(command)], 10)
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


# The script of a task.


def made_script(folder: Path, numbers: tuple[int, ...], scheduler: str, setup: str = "") -> Path:
    """The script of an array of a plan of 40 shards, with a stand-in for Python."""
    shards = {f"{number:05}": None for number in range(40)}
    plan = SimpleNamespace(results=Results(folder / "results of $1"), shards=shards)
    own = Array(scheduler, "run", "d", "name", 1, 0, numbers, len(numbers))
    for name in (plan.results.array_folder("run"), plan.results.log("multiply").parent):
        name.mkdir(parents=True, exist_ok=True)
    text = task.script(plan, own, SCHEDULERS[scheduler].find_number(own), setup, 500)
    python = folder / "python"
    python.write_text('#!/bin/sh\necho "$@"; exit "${CODE:-0}"\n')
    python.chmod(0o755)
    path = folder / "task.sh"
    path.write_text(text.replace(sys.executable, str(python)))
    return path


def run_script(script: Path, **variables: str) -> int:
    """Run a task's script as a scheduler would, and return its exit code."""
    env = {"PATH": "/usr/bin:/bin", **variables}
    return subprocess.run(["bash", str(script)], env=env, check=False).returncode


@pytest.mark.parametrize("scheduler", ["slurm", "uge"])
def test_a_task_finds_its_shard(tmp_path: Path, scheduler: str) -> None:
    """By its index alone: its log, and a command that means the shard's number in the plan."""
    numbers = (0, 1, 2, 7, 9, 10, 39)
    script = made_script(tmp_path, numbers, scheduler)
    own = Array(scheduler, "run", "d", "name", 1, 0, numbers, len(numbers))
    indices = SCHEDULERS[scheduler].indices(own)
    variable = {"slurm": "SLURM_ARRAY_TASK_ID", "uge": "SGE_TASK_ID"}[scheduler]
    for number, index in zip(numbers, indices, strict=True):
        assert run_script(script, **{variable: str(index), "JOB_ID": "7"}) == 0
        log = tmp_path / "results of $1" / "logs" / "multiply" / f"{number:05}.log"
        first = int(log.read_text().split("--array-first ")[1])
        assert first + index - (scheduler == "uge") == number
        assert "--mem-mb=500 --array-task" in log.read_text()


@pytest.mark.parametrize(("code", "status"), [(0, 0), (3, 3), (75, 75), (99, 1), (100, 1)])
def test_a_task_leaves_a_mark_where_it_fails(tmp_path: Path, code: int, status: int) -> None:
    """With its exit code, of which Grid Engine never sees 99 and 100; a next start removes it."""
    script = made_script(tmp_path, (4,), "slurm")
    assert run_script(script, SLURM_ARRAY_TASK_ID="4", CODE=str(code)) == status
    mark = tmp_path / "results of $1" / "logs" / "array" / "run" / "name.00004"
    assert (mark.read_text() if mark.exists() else "0") == (f"{code}\n" if code else "0")
    assert run_script(script, SLURM_ARRAY_TASK_ID="4") == 0
    assert not mark.exists()


def test_a_set_up_line_that_fails_is_worth_another_try(tmp_path: Path) -> None:
    """The task ends with 75 before it begins, and its log says why."""
    script = made_script(tmp_path, (4,), "slurm", "export A='it is'; [ \"$A\" = 'it is not' ]")
    assert run_script(script, SLURM_ARRAY_TASK_ID="4") == 75
    log = (tmp_path / "results of $1" / "logs" / "multiply" / "00004.log").read_text()
    assert "ERROR the profile's set-up line (precommand) ended with 1" in log
    assert "--array-task" not in log


# A dispatch.


@dataclass
class Pretended:
    """A scheduler in this process: tasks run at once, and fail as they are told to."""

    plan: object
    title: str = "Pretended"
    most: int = 1000
    room: int = 10**6
    codes: dict[str, list[int]] = field(default_factory=dict)
    trouble: dict[str, Tasks] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)
    away: int = 0
    mute: int = 0
    queue: dict[str, tuple[Array, list[int], int | None]] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    throttles: dict[str, list[int | None]] = field(default_factory=lambda: defaultdict(list))
    starts: list[str] = field(default_factory=list)
    at_once: int = 0

    cut = staticmethod(GridEngine().cut)
    indices = staticmethod(GridEngine().indices)
    find_number = staticmethod(GridEngine().find_number)
    commands = staticmethod(Slurm().commands)
    run_time = staticmethod(Slurm().run_time)

    def limits(self) -> tuple[int, int]:
        """How far indices reach, and the most tasks of an array."""
        return 1000, self.most

    def submit(self, own: Array, words: list, _script: Path, throttle: int | None) -> str:
        """Take an array, or not."""
        if words == self.refused:
            raise InputError("no host has so much memory")
        if sum(len(left) for _, left, _ in self.queue.values()) + len(own.numbers) > self.room:
            raise QueueFull("full")
        assert own in journal.noted(self.plan.results), "noted before it is submitted"
        self.queue[own.name] = (own, self.indices(own), throttle)
        self.sizes.append(len(own.numbers))
        self.throttles[own.name].append(throttle)
        if self.mute:
            self.mute, self.away = self.mute - 1, 2
            raise TryAgain("no answer")
        return f"job-{own.name}"

    def tasks(self, runs: list[str]) -> list[Tasks]:
        """Work on some tasks, then list what is left."""
        if self.away:
            self.away -= 1
            raise TryAgain("away")
        found = []
        at_once = sum(len(left[:limit]) for _, left, limit in self.queue.values())
        self.at_once = max(self.at_once, at_once)
        for name, (own, left, limit) in list(self.queue.items()):
            assert own.run in runs or not left
            for index in left[:limit]:
                shard = f"{own.numbers[index - 1]:05}"
                if shard not in self.trouble:
                    left.remove(index)
                    self._work(own, shard)
            for index in left:
                odd = self.trouble.get(f"{own.numbers[index - 1]:05}")
                trouble, hopeless = (odd.trouble, odd.hopeless) if odd else ("", False)
                found.append(Tasks(f"job-{name}", name, (index,), "", trouble, hopeless))
        return found

    def _work(self, own: Array, shard: str) -> None:
        self.starts.append(shard)
        folder = self.plan.results.array_folder(own.run)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{own.name}.number").write_text("77\n")
        codes = self.codes.get(shard, [])
        code = codes.pop(0) if codes else 0
        if shard in self.lost:
            self.lost.remove(shard)
        elif code:
            log = self.plan.results.log("multiply", shard)
            log.write_text(f"2026-01-01 00:00:00,000 ERROR it said {code}\n")
            (folder / f"{own.name}.{shard}").write_text(f"{code}\n")
        else:
            whole(self.plan, shard)

    def fates(self, _runs: set[str], gone: dict) -> dict[tuple[str, int], Fate]:
        """All that is gone without a word was lost with its node."""
        return {(n, i): Fate("NODE_FAIL", True) for n, (_, some) in gone.items() for i in some}

    def throttle(self, number: str, limit: int) -> None:
        """Let more tasks run; 0: all."""
        name = number.removeprefix("job-")
        own, left, _ = self.queue[name]
        self.queue[name] = (own, left, limit or None)
        self.throttles[name].append(limit)

    def cancel_tasks(self, number: str, which: list[int]) -> None:
        """Take tasks out of the queue."""
        own, left, _ = self.queue[number.removeprefix("job-")]
        for index in which:
            left.remove(index)
            self.trouble.pop(f"{own.numbers[index - 1]:05}")


def whole(plan: object, shard: str) -> None:
    """Leave a product and its receipt, as the dispatch looks at them."""
    product = plan.results.product(shard)
    product.parent.mkdir(exist_ok=True)
    product.write_bytes(b"12345")
    row = plan.shards[shard]
    facts = {"shard": shard, "start": row.start, "stop": row.stop, "fingerprint": row.fingerprint,
             "file": {"bytes": 5, "checksum": "0" * 32}}  # fmt: skip
    receipts.write(plan.results.receipt(shard), facts)


@pytest.fixture
def pretended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretended:
    """A plan of eight shards, and a scheduler that knows of none of them."""
    plan = factories.plan(tmp_path, factories.stack((8, 2, 2)), shards=8, materialize=False)
    made = Pretended(plan)
    monkeypatch.setitem(follow.SCHEDULERS, "uge", made)
    for name in ("LOOK_SECONDS", "_LONG_LOOK_SECONDS", "_FULL_SECONDS"):
        monkeypatch.setattr(follow, name, 0.01)
    return made


@dataclass
class Clock:
    """Time that passes only where a dispatch sleeps, five seconds at once."""

    now: float = 0.0
    slept: list[float] = field(default_factory=list)
    events: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def monotonic(self) -> float:
        """Seconds since the start."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass, and happen what it brings."""
        self.slept.append(seconds)
        self.now += 5
        due = [event for event in self.events if event[0] <= self.now]
        self.events = [event for event in self.events if event not in due]
        for _, happen in due:
            happen()

    def at(self, second: float, happen: Callable[[], None]) -> None:
        """Let something happen at a time."""
        self.events.append((second, happen))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of a dispatch."""
    made = Clock()
    monkeypatch.setattr(follow, "time", made)
    return made


def dispatch(
    made: Pretended, limit: int | None = None, retries: int = 2, tasks: int | None = None
) -> None:
    """Run a whole dispatch on a pretended scheduler."""
    file = made.plan.results.root / "recipe.json"
    words = [["-try", str(number)] for number in (1, 2, 3)]
    file.write_text(json.dumps({"scheduler": "uge", "words": words, "memory": [1, 2, 3],
                                "setup": ""}))  # fmt: skip
    follow.run(made.plan, file, limit, retries, tasks)


def test_what_failed_for_a_time_is_tried_again(pretended: Pretended) -> None:
    """75 and a lost node are; 3 is not, the others finish, and the end names it."""
    pretended.codes = {"00001": [75, 75], "00002": [3]}
    pretended.lost = {"00004"}
    with pytest.raises(IntegrityError, match="of 8 shards 1 failed; 7 are whole"):
        dispatch(pretended)
    counts = {shard: pretended.starts.count(shard) for shard in pretended.plan.shards}
    assert counts == dict.fromkeys(counts, 1) | {"00001": 3, "00004": 2}
    assert "ERROR it said 3" in pretended.plan.results.log("multiply", "00002").read_text()
    log = pretended.plan.results.log("multiply", "00004").read_text()
    assert "the scheduler says: NODE_FAIL" in log
    attempts = [(own.attempt, own.numbers) for own in journal.noted(pretended.plan.results)]
    assert attempts == [(1, tuple(range(8))), (2, (1, 4)), (3, (1,))]


def test_what_a_network_disk_hides_is_not_lost(pretended, monkeypatch):
    """It shows files of other nodes once their folder is opened: none is computed again."""
    shown, is_whole, opened = set(), missing.is_whole, follow.os.open

    def open_folder(path: object, *rest: object) -> int:
        if Path(path) == pretended.plan.results.product("-").parent:
            shown.update(pretended.starts)
        return opened(path, *rest)

    monkeypatch.setattr(missing, "is_whole", lambda p, s: s in shown and is_whole(p, s))
    monkeypatch.setattr(follow.os, "open", open_folder)
    dispatch(pretended)
    assert sorted(pretended.starts) == list(pretended.plan.shards)


@pytest.mark.fault("a file that is seen late")
@pytest.mark.parametrize(
    ("well", "arrives", "starts"), [(True, 50, 1), (True, 500, 2), (False, 50, 2)]
)
def test_a_late_file_is_waited_for(pretended, clock, well, arrives, starts):
    """A minute where the task has ended well, by the scheduler; less where it has failed."""
    pretended.lost = {"00004"}
    pretended.fates = lambda _runs, gone: {
        (name, index): Fate("so it says", False, well)
        for name, (_, some) in gone.items()
        for index in some
    }
    clock.at(arrives, lambda: whole(pretended.plan, "00004"))
    dispatch(pretended)
    assert pretended.starts.count("00004") == starts


def test_a_refused_second_try_is_the_end_of_its_shards_only(pretended: Pretended) -> None:
    """No host has what it asks for: the end names these shards and those that failed before."""
    pretended.codes = {"00001": [75], "00002": [3]}
    pretended.refused = ["-try", "2"]
    with pytest.raises(IntegrityError, match="of 8 shards 2 failed; 6 are whole"):
        dispatch(pretended)
    log = pretended.plan.results.log("multiply", "00001").read_text()
    assert "Pretended did not take it: no host has so much memory" in log


def test_a_refused_first_try_is_the_end(pretended: Pretended) -> None:
    """Nothing was computed: the error is the scheduler's own, once."""
    pretended.refused = ["-try", "1"]
    with pytest.raises(InputError, match=r"^no host has so much memory$"):
        dispatch(pretended)


def test_a_full_queue_gets_smaller_arrays(pretended: Pretended) -> None:
    """What fits is submitted; the rest waits until tasks have ended."""
    pretended.room = 3
    dispatch(pretended)
    assert sum(pretended.sizes) == 8
    assert max(pretended.sizes) <= 3
    assert len(set(pretended.starts)) == len(pretended.starts) == 8


def test_the_limit_holds_for_all_arrays_together(pretended: Pretended) -> None:
    """A next array gets what the last one leaves, and more as that one ends."""
    pretended.room = 3
    dispatch(pretended, limit=2)
    assert sum(pretended.sizes) == 8
    assert len(pretended.sizes) > 1
    assert next(iter(pretended.throttles.values())) == [2]
    assert pretended.at_once == 2


@pytest.mark.parametrize("limit", [None, 1])
def test_an_answer_that_is_lost_costs_no_second_array(pretended, limit):
    """The scheduler has taken it, and says nothing for a while: it is found by its name.

    Or, where all tasks have ended when it speaks again, by the number that they have left.
    """
    pretended.mute = 1
    dispatch(pretended, limit)
    assert pretended.sizes == [8]
    assert len(pretended.starts) == 8


def test_a_slow_submission_does_not_stop_the_looks(pretended, clock, monkeypatch):
    """It may take minutes; the next look follows within one."""
    submit = pretended.submit

    def slowly(*words: object) -> str:
        clock.now += 170
        return submit(*words)

    monkeypatch.setattr(pretended, "submit", slowly)
    dispatch(pretended)
    assert clock.slept
    assert max(clock.slept) <= 60


def test_what_will_never_start_is_cancelled(pretended: Pretended) -> None:
    """A hopeless task ends with 2; one with another trouble has another try."""
    pretended.trouble = {
        "00001": Tasks("", "", (), trouble="PENDING (BadConstraints)", hopeless=True),
        "00002": Tasks("", "", (), trouble="it cannot start"),
    }
    with pytest.raises(InputError, match="of 8 shards 1 failed"):
        dispatch(pretended)
    assert sorted(pretended.starts) == [s for s in pretended.plan.shards if s != "00001"]


def test_joined_arrays_keep_the_limit(pretended: Pretended) -> None:
    """One that has no share of the limit goes on by one task; it never runs all of them."""
    digest = pretended.plan.facts.digest
    for place, indices in enumerate(([1, 2, 3, 4], [5, 6, 7, 8])):
        name = f"sw-array-old-{place}"
        old = Array("uge", "array-old", digest, name, 1, 0, tuple(range(8)), 8)
        journal.note(pretended.plan.results, old)
        pretended.queue[name] = (old, indices, 0)
    dispatch(pretended, limit=2)
    assert pretended.at_once <= 3
    assert sorted(pretended.starts) == list(pretended.plan.shards)


def test_what_ends_before_it_can_be_joined_is_not_submitted_again(pretended: Pretended) -> None:
    """Three tasks end between the look at the receipts and the first answer of the scheduler."""
    plan = pretended.plan
    numbers = tuple(range(8))
    old = Array(
        "uge", "array-old", plan.facts.digest, "sw-array-old-1", 1, 0, numbers, len(numbers)
    )
    journal.note(plan.results, old)
    pretended.queue[old.name] = (old, [2, 3, 4], None)
    dispatch(pretended)
    assert pretended.sizes == [5]
    assert sorted(pretended.starts) == list(plan.shards)


def test_tasks_of_another_plan_are_refused(pretended: Pretended) -> None:
    """They would write products of that plan beside ours."""
    old = Array("uge", "array-old", "another", "sw-array-old-1", 1, 0, (0, 1), 2)
    journal.note(pretended.plan.results, old)
    pretended.queue[old.name] = (old, [1, 2], 0)
    with pytest.raises(TryAgain, match=r"another plan .* cancel them .*scancel job-sw-array-old-1"):
        dispatch(pretended)
    assert not pretended.sizes


def test_without_a_scheduler_it_says_so(tmp_path: Path) -> None:
    """And says what to do on a machine that has none."""
    file = tmp_path / "recipe.json"
    file.write_text('{"scheduler": "", "words": [], "memory": [], "setup": ""}')
    with pytest.raises(InputError, match=r"no scheduler here .* dispatch: pool computes"):
        recipe.load(file)
    with pytest.raises(InputError, match="snakemake writes it"):
        recipe.load(tmp_path / "nowhere.json")


def test_who_started_us_is_known_by_the_lock_it_holds(tmp_path: Path) -> None:
    """A process that was started by the holder of the lock can tell when that one ends."""
    lock = tmp_path / "run.lock"
    assert follow.guardian(lock) is None
    program = "from pathlib import Path; from shardwise.dispatch.array import follow; " \
        f"print(follow.guardian(Path({str(lock)!r})) is not None)"  # fmt: skip
    with open(lock, "a"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONPATH": str(factories.SCRIPTS)},
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout == "True\n"


@pytest.mark.parametrize(
    ("lines", "limits"),
    [
        ("MaxArraySize = 4001", (4001, 4001)),
        ("Other = 1", (1001, 1001)),
        ("MaxArraySize = 4001\nSchedulerParameters = bf_continue,max_array_tasks=500,defer",
         (4001, 500)),
        ("MaxArraySize = 401\nSchedulerParameters = max_array_tasks=500", (401, 401)),
        ("MaxArraySize = 0", None),
    ],
)  # fmt: skip
def test_slurm_s_largest_array_is_asked_for(tmp_path, monkeypatch, lines, limits):
    """Where it says nothing of it, Slurm's own default counts; where it is 0, there are none."""
    command = tmp_path / "scontrol"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    command.write_text(f"#!/bin/sh\ncat <<'E'\n{lines}\nE\n")
    command.chmod(0o755)
    if limits:
        assert Slurm().limits() == limits
    else:
        with pytest.raises(InputError, match="takes no array jobs"):
            Slurm().limits()
