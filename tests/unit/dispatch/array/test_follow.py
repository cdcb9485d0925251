"""Arrays: what is noted, and dispatches on a pretended scheduler."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partialmethod
from itertools import pairwise
from pathlib import Path

import pytest
from shardwise.dispatch.array import follow, journal, recipe, task
from shardwise.dispatch.array.claims import Claims
from shardwise.dispatch.schedulers.common import Array, Fate, QueueFull, Tasks
from shardwise.dispatch.schedulers.slurm import Slurm
from shardwise.errors import InputError, IntegrityError, TryAgain
from shardwise.files.paths import Results
from shardwise.plan.plan import Plan
from shardwise.records import missing, receipts

from tests import factories


def test_a_line_that_was_cut_off_hides_no_other(tmp_path: Path) -> None:
    """A crash in the middle of a note: the arrays before and after it are read."""
    results = Results(tmp_path)
    one = Array("slurm", "array-1", "d", "sw-array-1-1", 1, (0, 1, 5), 3)
    two = Array("slurm", "array-2", "d", "sw-array-2-1", 2, (5, 7), 2)
    assert journal.noted(results) == []
    journal.note(results, one)
    with open(results.arrays, "a") as file:
        file.write("slurm\tarray-9\td")
    journal.note(results, two)
    assert journal.noted(results) == [one, two]


@dataclass
class Pretended:
    """A scheduler in this process: two tasks of an array at once compute two shards at each look.

    They fail as they are told to. ``ends`` says how a task leaves at its second look: ``killed``
    without a word, so too in ``writing`` a shard while it computes the next, or ``gives up`` in
    order.
    """

    plan: Plan
    title: str = "Pretended"
    own_index: str = ""
    most: int = 1000
    room: int = 10**6
    codes: dict[str, list[int]] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    ends: dict[int, str] = field(default_factory=dict)
    trouble: dict[int, tuple[str, bool]] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    away: int = 0
    mute: int = 0
    queue: dict[str, tuple[Array, list[int], int]] = field(default_factory=dict)
    mine: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    starts: list[str] = field(default_factory=list)
    cancelled: int = 0

    commands = staticmethod(Slurm().commands)
    run_time = staticmethod(Slurm().run_time)

    def log(self, shard: str) -> str:
        """The log of a shard."""
        return self.plan.results.log("multiply", shard).read_text()

    def most_tasks(self) -> int:
        """The most tasks of an array."""
        return self.most

    def submit(self, own: Array, words: list, _script: Path, throttle: int | None) -> str:
        """Take an array, or not."""
        if words == self.refused:
            raise InputError("no host has so much memory")
        if sum(len(left) for _, left, _ in self.queue.values()) + own.tasks > self.room:
            raise QueueFull("full")
        assert own in journal.noted(self.plan.results), "noted before it is submitted"
        self.queue[own.name] = (own, list(range(1, own.tasks + 1)), throttle or 2)
        self.sizes.append(own.tasks)
        if self.mute:
            self.mute, self.away = self.mute - 1, 2
            raise TryAgain("no answer")
        return f"job-{own.name}"

    def tasks(self, runs: list[str]) -> list[Tasks]:
        """Let tasks work, then list what is left."""
        if self.away:
            self.away -= 1
            raise TryAgain("away")
        found = []
        for name, (own, left, limit) in list(self.queue.items()):
            assert own.run in runs or not left
            able = [index for index in left if index not in self.trouble]
            for index in able[:limit]:
                if not self._work(own, index):
                    left.remove(index)
            for index in left:
                where = "node" if (name, index) in self.mine else ""
                trouble = self.trouble.get(index, ("", False))
                found.append(Tasks(f"job-{name}", name, (index,), where, *trouble))
        return found

    def _work(self, own: Array, index: int) -> bool:
        """Compute two shards; whether the task goes on."""
        folder = self.plan.results.array_folder(own.run)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{own.name}.number").write_text("77\n")
        marks, claims = task.Marks(self.plan.results, own), Claims(self.plan.results, own)
        how = self.ends.pop(index, "") if (own.name, index) in self.mine else ""
        mine = self.mine.setdefault((own.name, index), [])
        for _ in range(2):
            if not mine and (claim := claims.claim(index)):
                mine += [f"{number:05}" for number in claim.numbers]
            if how == "gives up":
                for shard in mine:
                    marks.leave(shard, 0)
            if how or not mine:
                self._begin(mine[: {"killed": 1, "writing": 2}.get(how, 0)])
                return False
            shard = mine.pop(0)
            self._begin([shard])
            if shard in self.lost:
                self.lost.remove(shard)
                return False
            code = self.codes[shard].pop(0) if self.codes.get(shard) else 0
            if code:
                log = self.plan.results.log("multiply", shard)
                log.parent.mkdir(parents=True, exist_ok=True)
                log.write_text(f"2026-01-01 00:00:00,000 ERROR it said {code}\n")
                marks.leave(shard, code)
            else:
                whole(self.plan, shard)
        return True

    def _begin(self, shards: list[str]) -> None:
        for shard in shards:
            self.starts.append(shard)
            journal = self.plan.results.starts(shard)
            journal.parent.mkdir(parents=True, exist_ok=True)
            journal.write_text("begun\n")
            os.utime(journal, (len(self.starts), len(self.starts)))

    def fates(self, _runs: set[str], gone: dict) -> dict[tuple[str, int], Fate]:
        """All that is gone without a word was lost with its node."""
        return {(n, i): Fate("NODE_FAIL", True) for n, (_, some) in gone.items() for i in some}

    def cancel_tasks(self, number: str, which: list[int]) -> None:
        """Take tasks out of the queue."""
        _, left, _ = self.queue[number.removeprefix("job-")]
        self.cancelled += len(which)
        for index in which:
            left.remove(index)


def whole(plan: Plan, shard: str) -> None:
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
    for name in ("LOOK_SECONDS", "_LONG_LOOK_SECONDS", "_FULL_SECONDS", "_MARK_SECONDS"):
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
    assert "ERROR it said 3" in pretended.log("00002")
    assert "the scheduler says: NODE_FAIL" in pretended.log("00004")
    noted = journal.noted(pretended.plan.results)
    again = [(own.attempt, number) for own in noted[1:] for number in own.numbers]
    assert sorted(again) == [(2, 1), (2, 4), (3, 1)]


@pytest.mark.parametrize(
    ("most", "tasks", "size", "spared"), [(1000, None, 8, 6), (3, None, 3, 1), (1000, 3, 3, 1)]
)
def test_each_shard_is_computed_once(pretended, most, tasks, size, spared):
    """By as many tasks as the scheduler takes, or the config says; two find a device.

    The others are spared their start once all shards have a task.
    """
    pretended.most = most
    dispatch(pretended, tasks=tasks)
    assert sorted(pretended.starts) == list(pretended.plan.shards)
    assert pretended.sizes == [size]
    assert pretended.cancelled == spared


@pytest.mark.parametrize("how", ["killed", "writing"])
def test_a_killed_task_costs_one_shard_a_try(pretended: Pretended, how: str) -> None:
    """The one that it was computing: what else it had claimed, or had still to write, has none."""
    pretended.ends = {1: how}
    dispatch(pretended, tasks=1)
    lost = Counter(pretended.starts) - Counter(pretended.plan.shards.keys())
    assert set(lost.values()) == {1}
    assert len(lost) == {"killed": 1, "writing": 2}[how]
    (again,) = [a for a in journal.noted(pretended.plan.results) if a.attempt == 2]
    assert [f"{number:05}" for number in again.numbers] == [max(lost)]


def test_what_is_given_up_is_no_failure(pretended: Pretended) -> None:
    """Both tasks leave in order: other tasks go on, at the first try."""
    pretended.ends = {1: "gives up", 2: "gives up"}
    dispatch(pretended, retries=0, tasks=2)
    assert sorted(pretended.starts) == list(pretended.plan.shards)
    assert {a.attempt for a in journal.noted(pretended.plan.results)} == {1}


def leave_without_a_claim(made: Pretended, own: Array, index: int, code: int) -> bool:
    """End a task before it has claimed a shard, with an exit code in its log."""
    path = made.plan.results.array_folder(own.run) / f"{own.name}.{index}.log"
    path.write_text(f"2026-01-01 00:00:00,000 INFO exit code {code}\n"
                    "2026-01-01 00:00:00,000 ERROR no device here\n")  # fmt: skip
    return False


@pytest.mark.parametrize(("code", "error", "arrays"), [(75, TryAgain, 3), (2, InputError, 1)])
def test_tasks_that_cannot_compute_come_to_an_end(pretended, monkeypatch, code, error, arrays):
    """No task finds a device, array after array: the log of one says why, and with which code."""
    monkeypatch.setattr(Pretended, "_work", partialmethod(leave_without_a_claim, code=code))
    with pytest.raises(error, match="of 8 shards 8 failed; 0 are whole"):
        dispatch(pretended, tasks=2)
    assert len(pretended.sizes) == arrays
    assert "no task of its array could compute: no device here" in pretended.log("00007")


def test_a_task_that_is_told_to_end_before_it_claims_blames_nobody(pretended, monkeypatch):
    """Its shard is tried again at no cost, as other tasks of this run could compute."""
    pretended.lost, told, work = {"00004"}, [], Pretended._work

    def leave_once(made: Pretended, own: Array, index: int) -> bool:
        if own.attempt == 1 or told:
            return work(made, own, index)
        told.append(own.name)
        return leave_without_a_claim(made, own, index, 143)

    monkeypatch.setattr(Pretended, "_work", leave_once)
    dispatch(pretended, retries=1, tasks=1)
    assert told
    assert Counter(pretended.starts) == Counter([*pretended.plan.shards, "00004"])


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
    assert "Pretended did not accept it: no host has so much memory" in pretended.log("00001")


def test_a_refused_first_try_is_the_end(pretended: Pretended) -> None:
    """Nothing was computed: the error is the scheduler's own, once."""
    pretended.refused = ["-try", "1"]
    with pytest.raises(InputError, match=r"^no host has so much memory$"):
        dispatch(pretended)


def test_a_full_queue_gets_smaller_arrays(pretended: Pretended) -> None:
    """What fits is submitted with its part of the shards; the rest waits until tasks have ended."""
    pretended.room = 3
    dispatch(pretended)
    assert len(pretended.sizes) > 1
    assert max(pretended.sizes) <= 3
    assert sorted(pretended.starts) == list(pretended.plan.shards)


def test_a_limit_lets_one_array_in_at_a_time(pretended: Pretended) -> None:
    """A second try, too, and what is beside a joined array, wait until that has ended."""
    joined(pretended, "sw-array-old-1", (0, 1), [1, 2])
    pretended.codes = {"00005": [75]}
    submit, left = pretended.submit, []

    def look(*words: object) -> str:
        left.extend(index for _, some, _ in pretended.queue.values() for index in some)
        return submit(*words)

    pretended.submit = look
    dispatch(pretended, limit=1)
    assert len(pretended.sizes) == 2
    assert not left
    assert pretended.starts.count("00005") == 2


@pytest.mark.fault("a scheduler that answers nothing")
@pytest.mark.parametrize("limit", [None, 1])
def test_an_answer_that_is_lost_costs_no_second_array(pretended, limit):
    """The scheduler has taken it, and says nothing for a while: it is found by its name.

    Or, where all tasks have ended when it speaks again, by the number that they have left.
    """
    pretended.mute = 1
    dispatch(pretended, limit)
    assert pretended.sizes == [8]
    assert len(pretended.starts) == 8


def test_an_array_that_arrives_twice_goes_once(pretended, monkeypatch):
    """The scheduler takes a submission so late that it has been made anew: that one is the second.

    Its tasks have the indices of the others, and would compute what these have claimed.
    """
    cancelled, tasks, cancel = [], pretended.tasks, pretended.cancel_tasks

    def list_both(runs: list[str]) -> list[Tasks]:
        found = tasks(runs)
        return found + [replace(own, number="late") for own in found if not cancelled]

    def cancel_either(number: str, which: list[int]) -> None:
        cancelled.extend(which) if number == "late" else cancel(number, which)

    monkeypatch.setattr(pretended, "tasks", list_both)
    monkeypatch.setattr(pretended, "cancel_tasks", cancel_either)
    dispatch(pretended, tasks=2)
    assert sorted(cancelled) == [1, 2]


def test_what_is_whole_is_not_computed_again_for_want_of_a_claim(pretended, monkeypatch):
    """A full disk has cost a claim its text, so that nobody can tell whose it is."""
    work = Pretended._work

    def lose_claims(made: Pretended, own: Array, index: int) -> bool:
        goes_on = work(made, own, index)
        (made.plan.results.array_folder(own.run) / f"{own.name}.claims/task-{index}").write_text("")
        return goes_on

    monkeypatch.setattr(Pretended, "_work", lose_claims)
    pretended.codes = {"00001": [75, 0]}
    dispatch(pretended, tasks=1)
    assert Counter(pretended.starts) == Counter([*pretended.plan.shards, "00001"])


def test_what_is_given_up_without_end_comes_to_an_end(pretended, monkeypatch):
    """Each task is ended before it finishes a shard: nobody is to blame, but not for ever."""
    work = Pretended._work

    def leave_at_once(made: Pretended, own: Array, index: int) -> bool:
        if not made.starts:
            return work(made, own, index)
        claims = iter(lambda: Claims(made.plan.results, own).claim(index), None)
        numbers = [number for claim in claims for number in claim.numbers]
        for shard in [*made.mine.pop((own.name, index), []), *(f"{n:05}" for n in numbers)]:
            task.Marks(made.plan.results, own).leave(shard, 0)
        return False

    monkeypatch.setattr(Pretended, "_work", leave_at_once)
    with pytest.raises(TryAgain, match="of 8 shards 6 failed; 2 are whole"):
        dispatch(pretended, tasks=1, retries=1)
    assert len(pretended.sizes) == 2 * follow.MOST_RETURNS
    assert "handed back 10 times in a row while no shard of the run ended" in pretended.log("00007")


def test_a_slow_submission_does_not_stop_the_looks(pretended, clock, monkeypatch):
    """It may take minutes, also where the queue is full; the next look follows within one."""
    monkeypatch.setattr(follow, "LOOK_SECONDS", 2.0)
    submit, tasks, calls = pretended.submit, pretended.tasks, []

    def slowly(*words: object) -> str:
        calls.append("submission")
        clock.now += 170
        return submit(*words)

    def look(runs: list[str]) -> list[Tasks]:
        calls.append("look")
        return tasks(runs)

    monkeypatch.setattr(pretended, "submit", slowly)
    monkeypatch.setattr(pretended, "tasks", look)
    pretended.room = 3
    dispatch(pretended)
    assert max(clock.slept) <= 60
    assert ("submission", "submission") not in pairwise(calls)


def test_who_cannot_start_leaves_its_work_to_others(pretended: Pretended) -> None:
    """A task that its scheduler holds is cancelled."""
    pretended.trouble = {1: ("it cannot start", False)}
    dispatch(pretended, tasks=2)
    assert pretended.cancelled == 1
    assert sorted(pretended.starts) == list(pretended.plan.shards)


def test_what_will_never_start_is_cancelled(pretended: Pretended) -> None:
    """Where that is all, the scheduler's reason is that of each shard; another try is no use."""
    pretended.trouble = dict.fromkeys(range(1, 9), ("PENDING (BadConstraints)", True))
    with pytest.raises(InputError, match="of 8 shards 8 failed"):
        dispatch(pretended)
    assert len(pretended.sizes) == 1
    assert "the scheduler says: PENDING (BadConstraints)" in pretended.log("00007")


def joined(made: Pretended, name: str, numbers: tuple[int, ...], left: list[int]) -> Array:
    """An array of an earlier run, two tasks for its shards, with those that are left of them."""
    old = Array("uge", "array-old", made.plan.facts.digest, name, 1, numbers, 2)
    journal.note(made.plan.results, old)
    made.queue[name] = (old, left, 2)
    return old


def test_a_next_run_joins_them(pretended: Pretended) -> None:
    """One task works and one is gone: its shards are submitted, the other's are waited for."""
    old = joined(pretended, "sw-array-old-1", tuple(range(8)), [1])
    claims = Claims(pretended.plan.results, old)
    living, dead = claims.claim(1), Claims(pretended.plan.results, old).claim(2)
    pretended.mine[old.name, 1] = [f"{number:05}" for number in living.numbers]
    dispatch(pretended, tasks=2)
    assert sorted(pretended.starts) == list(pretended.plan.shards)
    again = [a for a in journal.noted(pretended.plan.results) if a.run != old.run]
    assert sorted(number for a in again for number in a.numbers) == sorted(dead.numbers)


def test_what_ends_before_it_can_be_joined_is_not_submitted_again(pretended: Pretended) -> None:
    """Shards are finished between the look at the receipts and the scheduler's first answer."""
    joined(pretended, "sw-array-old-1", tuple(range(8)), [1])
    dispatch(pretended, tasks=2)
    assert sorted(pretended.starts) == list(pretended.plan.shards)


def test_tasks_of_another_plan_are_refused(pretended: Pretended) -> None:
    """They would write products of that plan beside ours."""
    old = Array("uge", "array-old", "another", "sw-array-old-1", 1, (0, 1), 2)
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
