"""Array jobs: one submission for all missing shards, followed to the end by one process.

A task runs ``scripts/multiply.py --array-task`` and nothing around it. Whether its shard is whole,
its receipt says; how a failed one ended, a mark that its script leaves; of one that left neither,
the scheduler's state. What is Slurm's own and what is Grid Engine's, their classes hold.

Arrays are noted in ``results/arrays.tsv`` before they are submitted. Where the following process
dies, its tasks work on, and the next run joins them: it waits for those that live, and submits only
what neither lives nor is whole. Where it is interrupted, it cancels them.
"""

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from shardwise.dispatch import journal, recipe
from shardwise.dispatch.recipe import Recipe
from shardwise.dispatch.schedulers.common import UNHEARD_SECONDS, Array, Scheduler, Tasks, prefix
from shardwise.dispatch.schedulers.registry import SCHEDULERS
from shardwise.dispatch.script import _SCRIPTS, script
from shardwise.dispatch.tally import Tally, holding
from shardwise.errors import InputError, QueueFull, TryAgain
from shardwise.plan.plan import Plan
from shardwise.records import missing
from shardwise.records.logs import explain

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""The least pause between two looks at the queue."""

_LONG_LOOK_SECONDS = 15.0
"""The longest, unless a look takes long: a run's pauses grow to a fiftieth of its time so far."""

_SLOW_LOOK_SECONDS = 60.0
"""The longest of all, after a look or a submission that took long itself."""

_FULL_SECONDS = 10.0
"""The pause before the next submission to a full queue."""

_TRACE_SECONDS = 60.0
"""How long a receipt, a mark or a record may take to arrive after a task has left the queue.

A network disk may take as long to show a file that another node has finished.
"""

_MARK_SECONDS = 10.0
"""The same where the scheduler says that the task failed: then no receipt will come."""

_SIGNALLED = 128
"""Exit codes above it say which signal ended a process."""

_CANCEL_SECONDS = 600.0
"""How long a cancellation insists, where the scheduler does not answer."""

_CANCELLED = "cancelled"
"""The file in the folder of a dispatch that says: its tasks are being cancelled, do not join."""


def run(
    plan: Plan, file: Path | None, limit: int | None = None, retries: int | None = None
) -> None:
    """Compute all missing shards in tasks of arrays; return when all are whole.

    Parameters
    ----------
    file
        What a task asks the scheduler for (:mod:`shardwise.dispatch.recipe`); None for what
        snakemake wrote last for these results.
    limit
        Tasks that run at once, over all arrays; None: as many as the scheduler lets.
    retries
        Tries after the first of one shard; None: what the recipe says.

    Raises
    ------
    InputError
        Where this machine has no scheduler.
    TryAgain
        Where another process computes these shards, tasks of another plan live, or snakemake, which
        started this, has ended.
    ShardwiseError
        Where shards failed, after all others are whole; see :meth:`Tally.finish`.
    """
    known = recipe.load(file or recipe.path(plan.results))
    retries = known.retries if retries is None else retries
    with holding(plan.results):
        tally = Tally(plan, missing.missing(plan), retries)
        dispatch = Dispatch(plan, known, limit, tally)
        try:
            dispatch.follow()
        except BaseException as error:
            # Interrupted or told to end. (After an error the tasks live on, to be joined.)
            if not isinstance(error, Exception):
                for number in (signal.SIGINT, signal.SIGTERM):
                    signal.signal(number, signal.SIG_IGN)  # no second one cuts this short
                dispatch.cancel_detached()
            raise
        tally.finish()


class Dispatch:
    """The arrays of one run, and the tasks of earlier ones that it has joined.

    Parameters
    ----------
    limit
        Tasks that run at once, over all arrays, or None.
    tally
        The shards to compute.
    """

    def __init__(self, plan: Plan, known: Recipe, limit: int | None, tally: Tally) -> None:
        self._plan, self._recipe, self._limit, self._tally = plan, known, limit, tally
        self._scheduler = SCHEDULERS[known.scheduler]
        self._ids = list(plan.shards)
        self._numbers = {shard: number for number, shard in enumerate(self._ids)}
        self._run = f"array-{os.urandom(3).hex()}"
        self._runs = [self._run]
        self._guardian = guardian(plan.results.running)
        self._joined = False
        # Of each array that has tasks here: itself, its shards by index, its number, its limit.
        self._arrays: dict[str, Array] = {}
        self._shards: dict[str, dict[int, str]] = {}
        self._job: dict[str, str] = {}
        self._throttle: dict[str, int | None] = {}
        # Of each shard: the array that it is in and its index there, the attempt that comes next.
        self._placed: dict[str, tuple[str, int]] = {}
        self._attempt: dict[str, int] = {}
        self._gone: dict[str, float] = {}
        self._silent: dict[str, float] = {}
        # The next array, from its note to the scheduler's answer; whether it may have arrived.
        self._next: Array | None = None
        self._asked = False
        # How far indices reach, the most tasks of an array, and those that the next one may have.
        self._reach = self._most = self._size = 0
        self._full_until = 0.0
        self._count = 0

    def follow(self) -> None:
        """Submit and look, until every shard is whole or has failed for good.

        Raises
        ------
        TryAgain
            Where tasks of another plan live, or snakemake has ended.
        """
        start = time.monotonic()
        while not self._tally.ended:
            began = time.monotonic()
            try:
                self._look()
            except _Refused:
                raise
            except TryAgain as error:
                self._silent.clear()  # a restarted master has heard of no node yet
                self._tally.note(
                    f"{self._scheduler.title} does not answer ({error}); its tasks work on, and "
                    "this goes on when it does"
                )
                self._take_whole()
            self._tally.report()
            if not self._tally.ended:
                now = time.monotonic()
                late = min(_LONG_LOOK_SECONDS, (now - start) / 50)
                slow = min(_SLOW_LOOK_SECONDS, 5 * (now - began))
                self._pause(max(LOOK_SECONDS, late, slow))

    def _pause(self, seconds: float) -> None:
        """Wait; end where snakemake has, which had started this."""
        if self._guardian is None:
            time.sleep(seconds)
        elif select.select([self._guardian], [], [], seconds)[0]:
            raise _Refused(
                "snakemake, which started this, has ended; the tasks work on, and the next run "
                f"joins them ({self._scheduler.commands(self._runs, self._living())[0]})"
            )

    def _living(self) -> list[str]:
        return [self._job[name] for name in self._arrays if name in self._job]

    def _look(self) -> None:
        """Ask once, settle what has ended, submit what is to be tried."""
        if not self._joined and not self._join():
            return
        found = self._scheduler.tasks(self._runs)
        self._confirm(found)
        here = self._by_shard(found)
        self._settle(here)
        self._raise_throttles(here)
        self._submit()

    # Joining.

    def _join(self) -> bool:
        """Take over the tasks of earlier dispatches that live; False where some are still leaving.

        Raises
        ------
        TryAgain
            Where some are of another plan.
        """
        noted = [a for a in journal.noted(self._plan.results)
                 if a.scheduler == self._recipe.scheduler]  # fmt: skip
        runs = sorted({array.run for array in noted})
        found = self._scheduler.tasks(runs) if runs else []
        living = {tasks.name for tasks in found}
        arrays = [array for array in noted if array.name in living]
        self._refuse_strangers([a for a in arrays if a.digest != self._plan_digest], found)
        if leaving := {array.run for array in arrays if self._is_cancelled(array.run)}:
            self._tally.note("waiting for tasks of an earlier run that are being cancelled")
            for run_name in leaving:
                self._scheduler.cancel(run_name)
            return False
        self._runs += sorted({array.run for array in arrays})
        for array in arrays:
            self._take_over(array, [tasks for tasks in found if tasks.name == array.name])
        if any(array.digest == self._plan_digest for array in noted):
            self._take_ended()
        self._joined = True
        return True

    def _take_ended(self) -> None:
        """Count what tasks of earlier runs have finished since the tally was made."""
        self._refresh()
        for shard in self._tally.waiting:
            if missing.is_whole(self._plan, shard):
                self._done(shard)

    @property
    def _plan_digest(self) -> str:
        return self._plan.facts.digest

    def _is_cancelled(self, run_name: str) -> bool:
        return (self._plan.results.array_folder(run_name) / _CANCELLED).exists()

    def _refuse_strangers(self, strangers: list[Array], found: list[Tasks]) -> None:
        if not strangers:
            return
        runs, names = sorted({a.run for a in strangers}), {a.name for a in strangers}
        jobs = sorted({tasks.number for tasks in found if tasks.name in names})
        see, cancel = self._scheduler.commands(runs, jobs)
        raise _Refused(
            f"arrays of another plan still wait or work on {self._plan.results.root}. Let them "
            f"finish (see: {see}), or cancel them ({cancel}); then run the same command again"
        )

    def _take_over(self, array: Array, found: list[Tasks]) -> None:
        """Wait for the living tasks of an array as if they had been submitted here."""
        shards = self._know(array, None)
        wanted, count = set(self._tally.waiting), 0
        for tasks in found:
            for index in tasks.indices:
                shard = shards.get(index)
                if shard in wanted and shard not in self._placed:
                    self._placed[shard] = (array.name, index)
                    self._attempt[shard] = array.attempt
                    count += 1
        log.info("%d tasks of an earlier run still wait or work (%s): joined", count,
                 self._scheduler.commands([array.run], [found[0].number])[0])  # fmt: skip

    def _know(self, array: Array, throttle: int | None) -> dict[int, str]:
        """Note an array that has been submitted; returns its shards by index."""
        ids = [self._ids[number] for number in array.numbers]
        shards = dict(zip(self._scheduler.indices(array), ids, strict=True))
        self._arrays[array.name], self._shards[array.name] = array, shards
        self._throttle[array.name] = throttle
        return shards

    # Following.

    def _confirm(self, found: list[Tasks]) -> None:
        """Find out whether a submission arrived that got no answer."""
        for tasks in found:
            self._job[tasks.name] = tasks.number
        if self._next is None or not self._asked:
            return
        name = self._next.name
        # A task leaves the number of its array, as all of them may have ended by now.
        with contextlib.suppress(OSError):
            self._job.setdefault(name, (self._folder / f"{name}.number").read_text().strip())
        if name in self._job:
            self._place(self._next)
        self._asked = False

    def _by_shard(self, found: list[Tasks]) -> dict[str, Tasks]:
        """The tasks in the queue that are waited for, by shard."""
        here = {}
        for tasks in found:
            shards = self._shards.get(tasks.name, {})
            for index in tasks.indices:
                shard = shards.get(index)
                if shard is not None and self._placed.get(shard) == (tasks.name, index):
                    here[shard] = tasks
        return here

    def _settle(self, here: dict[str, Tasks]) -> None:
        """Bring the tally up to what the queue, the receipts and the marks say."""
        unknown, troubled = [], {}
        if any(shard not in here or here[shard].ending for shard in self._placed):
            self._refresh()
        for shard in list(self._placed):
            tasks = here.get(shard)
            if (tasks is None or tasks.ending) and self._ended(shard):
                continue
            if tasks is None:
                unknown.append(shard)
                continue
            self._gone.pop(shard, None)
            self._take_state(shard, tasks)
            if trouble := tasks.trouble or self._loss(shard, tasks):
                troubled.setdefault((tasks.number, trouble, tasks.hopeless), []).append(shard)
        self._give_up(troubled)
        self._judge(unknown)

    def _refresh(self) -> None:
        """Have a network disk show what other nodes have finished.

        It may remember for a minute that a file was not there; opening the folder makes it ask.
        """
        marks = [self._plan.results.array_folder(run_name) for run_name in self._runs]
        for folder in (self._plan.results.product("-").parent, *marks):
            with contextlib.suppress(OSError):  # not there yet
                os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))

    def _take_state(self, shard: str, tasks: Tasks) -> None:
        """A task that is in the queue waits or works."""
        runs = shard in self._tally.running
        if tasks.where and not runs:
            self._tally.began(shard, tasks.where)
        elif not tasks.where and runs:
            self._tally.back(shard)  # requeued by the scheduler or its staff
        if tasks.held:
            self._tally.note(f"tasks of job {tasks.number} are held until you release them")

    def _loss(self, shard: str, tasks: Tasks) -> str:
        """Why a task counts as lost though it is in the queue; empty where it does not."""
        if not tasks.silent:
            self._silent.pop(shard, None)
            return ""
        silence = time.monotonic() - self._silent.setdefault(shard, time.monotonic())
        return f"lost: {tasks.where} is not heard of" if silence >= UNHEARD_SECONDS else ""

    def _give_up(self, troubled: dict[tuple[str, str, bool], list[str]]) -> None:
        """Cancel tasks that are in the queue and will not end by themselves."""
        for (number, trouble, hopeless), shards in troubled.items():
            self._scheduler.cancel_tasks(number, [self._placed[shard][1] for shard in shards])
            for shard in shards:
                self._failed(shard, 2 if hopeless else None, f"the scheduler says: {trouble}")

    def _ended(self, shard: str) -> bool:
        """Whether a task tells how it ended, by its receipt or its mark."""
        if missing.is_whole(self._plan, shard):
            self._done(shard)
            return True
        code = self._mark(shard)
        if code is None or code > _SIGNALLED:
            return False  # killed: who did it, the scheduler may know
        self._failed(shard, code, explain(self._plan.results.log("multiply", shard), None))
        return True

    def _mark(self, shard: str) -> int | None:
        array = self._arrays[self._placed[shard][0]]
        mark = self._plan.results.array_folder(array.run) / f"{array.name}.{shard}"
        try:
            return int(mark.read_text())
        except (OSError, ValueError):
            return None

    def _judge(self, unknown: list[str]) -> None:
        """Tasks that have left the queue without a word: the scheduler's, or a time, decides."""
        if not unknown:
            return
        now, gone = time.monotonic(), {}
        for shard in unknown:
            self._gone.setdefault(shard, now)
            name, index = self._placed[shard]
            gone.setdefault(name, (self._job.get(name, ""), []))[1].append(index)
        fates = self._scheduler.fates({self._arrays[name].run for name in gone}, gone)
        for shard in unknown:
            fate = fates.get(self._placed[shard])
            told = fate and (fate.certain or self._mark(shard) is not None)
            patience = _TRACE_SECONDS if fate is None or fate.well else _MARK_SECONDS
            if told or now - self._gone[shard] >= patience:
                ran = shard in self._tally.running
                unknown_end = "killed" if ran else "deleted while it waited in the queue"
                words = fate.words if fate else unknown_end
                self._failed(shard, None, f"the scheduler says: {words}")

    def _take_whole(self) -> None:
        """While the scheduler does not answer: count what has become whole."""
        for shard in list(self._tally.running):
            if missing.is_whole(self._plan, shard):
                self._done(shard)

    def _done(self, shard: str) -> None:
        self._leave(shard)
        self._tally.done(shard)

    def _failed(self, shard: str, code: int | None, reason: str) -> None:
        self._leave(shard)
        if self._tally.failed(shard, code, reason):
            self._attempt[shard] = self._attempt.get(shard, 1) + 1

    def _leave(self, shard: str) -> None:
        for known in (self._placed, self._gone, self._silent):
            known.pop(shard, None)

    # Submission.

    @property
    def _folder(self) -> Path:
        return self._plan.results.array_folder(self._run)

    def _submit(self) -> None:
        """Submit what is to be tried, in as few arrays as the scheduler and the limit allow."""
        if not self._most:
            self._reach, self._most = self._scheduler.limits()
            self._size = self._most
        while time.monotonic() >= self._full_until and (room := self._room()) != 0:
            if self._next is None:
                self._next = self._prepare()
            if self._next is None:
                return
            array, self._asked = self._next, True
            try:
                words, _ = self._recipe.at(array.attempt)
                file = self._folder / f"{array.name}.sh"
                self._job[array.name] = self._scheduler.submit(array, words, file, room)
            except QueueFull as error:
                self._wait_for_room(str(error))
            except InputError as error:
                self._refused(error)
            else:
                self._size = min(self._most, 2 * self._size)
                self._place(array, room)
            self._asked = False

    def _prepare(self) -> Array | None:
        """Note the next array, and write its script; None where nothing is to be submitted."""
        waiting = [shard for shard in self._tally.waiting if shard not in self._placed]
        attempt = min((self._attempt.get(shard, 1) for shard in waiting), default=0)
        wanted = sorted(
            self._numbers[shard] for shard in waiting if self._attempt.get(shard, 1) == attempt
        )
        if not wanted:
            return None
        first, numbers = self._scheduler.cut(wanted, self._reach, self._size)
        self._count += 1
        name = f"{prefix(self._run)}{self._count}"
        scheduler, digest = self._recipe.scheduler, self._plan_digest
        array = Array(scheduler, self._run, digest, name, attempt, first, numbers)
        _, memory = self._recipe.at(attempt)
        own_number = self._scheduler.find_number(array)
        text = script(self._plan, array, own_number, self._recipe.setup, memory)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._plan.results.log("multiply").parent.mkdir(parents=True, exist_ok=True)
        (self._folder / f"{name}.sh").write_text(text)
        journal.note(self._plan.results, array)
        return array

    def _refused(self, error: InputError) -> None:
        """The scheduler refuses what the recipe says; where it has taken arrays, that is no end."""
        if not self._arrays:
            raise error
        array, self._next = self._next, None
        for number in array.numbers:
            words = f"{self._scheduler.title} did not take it: {error}"
            self._failed(self._ids[number], 2, words)

    def _place(self, array: Array, throttle: int | None = None) -> None:
        """An array is the scheduler's now."""
        for index, shard in self._know(array, throttle or 0).items():
            self._placed[shard] = (array.name, index)
        self._next = None
        log.info("%d shards submitted: %s job %s, try %d", len(array.numbers),
                 self._scheduler.title, self._job[array.name], array.attempt)  # fmt: skip

    def _wait_for_room(self, said: str) -> None:
        """The queue is full: try half of it, and with one task left, later."""
        if len(self._next.numbers) > 1:
            self._size = max(1, len(self._next.numbers) // 2)
            self._next = None
            return
        self._full_until = time.monotonic() + _FULL_SECONDS
        self._tally.note(
            f"{self._scheduler.title} takes no more tasks now ({said}); waiting until some ended"
        )

    # The limit of tasks at once, which holds for all arrays together.

    def _room(self) -> int | None:
        """Tasks that a next array may run at once; None where there is no limit."""
        if self._limit is None:
            return None
        return self._limit - sum(self._shares().values())

    def _shares(self) -> dict[str, int]:
        """How many tasks of each array may run at once: earlier arrays first."""
        left, shares = self._limit or 0, {}
        in_queue = Counter(name for name, _ in self._placed.values())
        for name in self._arrays:
            shares[name] = min(left, in_queue[name])
            left -= shares[name]
        return shares

    def _raise_throttles(self, here: dict[str, Tasks]) -> None:
        """Give a later array what earlier ones do not need any more, and joined ones our limit."""
        shares = self._shares()
        for name in {tasks.name for tasks in here.values() if not tasks.where}:
            # 0 would mean no limit; a joined array that gets no share yet goes on by one.
            share = max(1, shares[name]) if self._limit else 0
            known = self._throttle[name]
            if known is None or share > known:
                with contextlib.suppress(InputError):  # it ended meanwhile
                    self._scheduler.throttle(self._job[name], share)
                self._throttle[name] = share

    # Leaving.

    def cancel_detached(self) -> None:
        """Have a process of its own cancel all tasks: snakemake gives this one little time."""
        runs = self._runs
        if not self._joined:
            noted = journal.noted(self._plan.results)
            runs = sorted({a.run for a in noted if a.digest == self._plan_digest} | {*runs})
        for run_name in runs:
            folder = self._plan.results.array_folder(run_name)
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                (folder / _CANCELLED).touch()
        log.warning("cancelling all tasks of this run")
        subprocess.Popen(
            [sys.executable, "-m", __name__, self._recipe.scheduler, *runs],
            env=os.environ | {"PYTHONPATH": str(_SCRIPTS)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


class _Refused(TryAgain):
    """Whatever the scheduler answers, this run cannot go on."""


def guardian(lock: Path) -> int | None:
    """A descriptor that can be read from when the process ends that started this and holds a lock.

    That is the snakemake whose job this is. None where none of our ancestors holds the file open:
    this was started by hand. Nor where Python or the kernel cannot tell.
    """
    pid = os.getppid()
    while pid > 1:
        try:
            watch = os.pidfd_open(pid)
            if any(os.path.samefile(f, lock) for f in Path(f"/proc/{pid}/fd").iterdir()):
                return watch
            os.close(watch)
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (OSError, AttributeError):  # not every build of Python has pidfd_open
            return None
        pid = int(stat.rpartition(")")[2].split()[1])
    return None


def cancel(scheduler: Scheduler, runs: Iterable[str]) -> None:
    """Cancel all tasks of some dispatches, until the queue has none of them; at most ten minutes.

    A submission that was cut off may still arrive: so none has to be seen twice.
    """
    end, empty = time.monotonic() + _CANCEL_SECONDS, 0
    while empty < 2 and time.monotonic() < end:
        with contextlib.suppress(TryAgain):
            found = [scheduler.cancel(run_name) for run_name in runs]
            empty = 0 if any(found) else empty + 1
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    cancel(SCHEDULERS[sys.argv[1]], sys.argv[2:])
