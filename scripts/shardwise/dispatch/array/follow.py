"""Array jobs: one submission for all missing shards, followed to the end by one process.

Where an array has as many tasks as shards, each task computes one, by ``scripts/multiply.py
--array-task``. Where it has fewer, its tasks claim shards (`claims`) and compute one after the
other (`puller`). A receipt says that a shard is whole, a mark how it was left; of a task that left
neither, the scheduler's state decides.

Arrays are noted in ``results/arrays.tsv`` before they are submitted. If this process dies, its
tasks work on, and the next run joins them. If it is interrupted, it cancels them.
"""

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from shardwise.dispatch.array import journal, recipe, task
from shardwise.dispatch.array.claims import Claim, Claims
from shardwise.dispatch.array.recipe import TaskRequest
from shardwise.dispatch.schedulers.common import UNHEARD_SECONDS, Array, Scheduler, Tasks, prefix
from shardwise.dispatch.schedulers.registry import SCHEDULERS
from shardwise.dispatch.tally import Tally, holding
from shardwise.errors import InputError, QueueFull, TryAgain
from shardwise.files.paths import folders
from shardwise.plan.plan import Plan
from shardwise.records import missing
from shardwise.records.logs import explain

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""The least pause between two looks at the queue."""

_LONG_LOOK_SECONDS = 15.0
"""The longest, unless a look takes long: a run's pauses grow to a fiftieth of its time so far."""

_SLOW_LOOK_SECONDS = 60.0  # the longest of all, after a look or a submission that took long itself
_FULL_SECONDS = 10.0  # the pause before the next submission to a full queue

_TRACE_SECONDS = 60.0
"""How long a receipt, a mark or a record may take to arrive after a task has left the queue.

A network disk may take as long to show a file that another node has finished.
"""

_MARK_SECONDS = 10.0
"""The same where the scheduler says that the task failed: then no receipt will come."""

_SIGNALLED = 128  # exit codes above it say which signal ended a process
_CANCEL_SECONDS = 600.0  # how long a cancellation insists, where the scheduler does not answer

_CANCELLED = "cancelled"
"""The file in the folder of a dispatch that says: its tasks are being cancelled, do not join."""


def run(
    plan: Plan, file: Path | None, limit: int | None = None, retries: int | None = None,
    most_tasks: int | None = None,
) -> None:  # fmt: skip
    """Compute all missing shards in tasks of arrays; return when all are whole.

    Parameters
    ----------
    file
        What a task asks the scheduler for (`recipe`); None: what snakemake wrote last for this.
    limit
        Tasks that run at once, over all arrays; None: as many as the scheduler lets.
    retries
        Tries after the first of one shard; None: what the recipe says.
    most_tasks
        Tasks of an array; None: one per shard, up to `recipe.MOST_TASKS`.

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
    request = recipe.load(file or recipe.path(plan.results))
    with holding(plan.results):
        tries_left = request.retries if retries is None else retries
        tally = Tally(plan, missing.list_missing(plan), tries_left)
        dispatch = ArrayDispatch(plan, request, limit, tally, most_tasks or recipe.MOST_TASKS)
        try:
            dispatch.follow()
        except BaseException as error:
            # Interrupted or told to end. (After an error the tasks live on, to be joined.)
            if not isinstance(error, Exception):
                for number in (signal.SIGINT, signal.SIGTERM):
                    signal.signal(number, signal.SIG_IGN)  # no second one cuts this short
                dispatch.cancel()
            raise
        tally.finish()


@dataclass(eq=False)
class Submitted:
    """An array that the scheduler has taken."""

    array: Array
    number: str
    # By index, the shards that each task has and has not ended, in its order.
    shards: dict[int, deque[str]]
    unclaimed: dict[str, None]  # shards that no task has
    # The limit of tasks at once; 0 means none; None, that it is not known, as of an array of an
    # earlier run.
    throttle: int | None
    claims: Claims | None  # of an array whose tasks pull shards; None where each has one
    in_queue: int  # tasks that wait or work
    gone_since: float | None = None  # since when none does
    # Whether a task has finished a shard, or left in order: then others may do so too.
    useful: bool = False


@dataclass(eq=False)
class Placement:
    """The task that has a shard, and since when it is out of the queue, or its node silent.

    The index is None while no task of the array has claimed the shard.
    """

    job: Submitted
    index: int | None
    gone_since: float | None = None
    silent_since: float | None = None


class ArrayDispatch:
    """The arrays of one run, and the tasks of earlier ones that it has joined."""

    def __init__(
        self, plan: Plan, request: TaskRequest, limit: int | None, tally: Tally, most_tasks: int
    ) -> None:
        self._plan, self._request, self._limit, self._tally = plan, request, limit, tally
        self._most_tasks = most_tasks
        self._scheduler = SCHEDULERS[request.scheduler]
        self._ids = list(plan.shards)
        self._numbers = {shard: number for number, shard in enumerate(self._ids)}
        self._run = f"array-{os.urandom(3).hex()}"
        self._runs = [self._run]
        self._guardian = guardian(plan.results.running)
        self._joined = False
        self._jobs: dict[str, Submitted] = {}  # by the name of the array
        self._placed: dict[str, Placement] = {}  # by shard
        self._attempts: dict[str, int] = {}  # of each shard, the one that comes next, if not 1
        # The next array, from its note to the scheduler's answer; whether it may have arrived.
        self._next: Array | None = None
        self._asked = False
        # How far indices reach, the most tasks of an array, and those that the next one may have.
        self._reach = self._most = self._size = 0
        self._full_until = 0.0
        self._count = 0

    def follow(self) -> None:
        """Submit and look, until every shard is whole or has failed for good.

        Raises TryAgain where tasks of another plan live, or snakemake has ended.
        """
        start = time.monotonic()
        while not self._tally.ended:
            began = time.monotonic()
            try:
                self._look()
            except _Refused:
                raise
            except TryAgain as error:
                for placement in self._placed.values():
                    placement.silent_since = None  # a restarted master has heard of no node yet
                self._tally.note(
                    f"{self._scheduler.title} does not answer ({error}); its tasks work on, and "
                    "this goes on when it does"
                )
                self._take_whole(self._tally.running)
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
            living = [job.number for job in self._jobs.values()]
            raise _Refused(
                "snakemake, which started this, has ended; the tasks work on, and the next run "
                f"joins them ({self._scheduler.commands(self._runs, living)[0]})"
            )

    def _look(self) -> None:
        """Ask once, settle what has ended, submit what is to be tried."""
        if not self._joined and not self._join():
            return
        listed = self._scheduler.tasks(self._runs)
        self._confirm(listed)
        self._take_claims(listed)
        self._settle(self._by_shard(listed))
        self._end_pulling(listed)
        self._raise_throttles(listed)
        self._submit()

    # Joining.

    def _join(self) -> bool:
        """Take over the tasks of earlier dispatches that live; False where some are still leaving.

        Raises TryAgain where some are of another plan.
        """
        scheduler = self._request.scheduler
        noted = [a for a in journal.noted(self._plan.results) if a.scheduler == scheduler]
        runs = sorted({array.run for array in noted})
        listed = self._scheduler.tasks(runs) if runs else []
        living = {tasks.name for tasks in listed}
        arrays = [array for array in noted if array.name in living]
        self._refuse_strangers([a for a in arrays if a.digest != self._plan_digest], listed)
        if leaving := {array.run for array in arrays if self._is_cancelled(array.run)}:
            self._tally.note("waiting for tasks of an earlier run that are being cancelled")
            for run_name in leaving:
                self._scheduler.cancel(run_name)
            return False
        self._runs += sorted({array.run for array in arrays})
        for array in arrays:
            self._take_over(array, [tasks for tasks in listed if tasks.name == array.name])
        if any(array.digest == self._plan_digest for array in noted):
            # What they have finished since the tally was made.
            self._refresh()
            self._take_whole(self._tally.waiting)
        self._joined = True
        return True

    @property
    def _plan_digest(self) -> str:
        return self._plan.facts.digest

    def _is_cancelled(self, run_name: str) -> bool:
        return (self._plan.results.array_folder(run_name) / _CANCELLED).exists()

    def _refuse_strangers(self, strangers: list[Array], listed: list[Tasks]) -> None:
        if not strangers:
            return
        runs, names = sorted({a.run for a in strangers}), {a.name for a in strangers}
        numbers = sorted({tasks.number for tasks in listed if tasks.name in names})
        see, cancel = self._scheduler.commands(runs, numbers)
        raise _Refused(
            f"arrays of another plan still wait or work on {self._plan.results.root}. Let them "
            f"finish (see: {see}), or cancel them ({cancel}); then run the same command again"
        )

    def _take_over(self, array: Array, living: list[Tasks]) -> None:
        """Wait for the living tasks of an array as if they had been submitted here."""
        job = self._add(array, living[0].number, None)
        alive = {index for tasks in living for index in tasks.indices}
        if job.claims:
            self._assign(job, job.claims.news())
        wanted = set(self._tally.waiting) - self._placed.keys()
        # What tasks had that are gone is submitted again, if it is not whole.
        job.shards = {
            index: deque(shard for shard in shards if shard in wanted)
            for index, shards in job.shards.items()
            if index in alive
        }
        job.unclaimed = {shard: None for shard in job.unclaimed if shard in wanted}
        self._keep(job)
        for shard in (shard for shard, placement in self._placed.items() if placement.job is job):
            self._attempts[shard] = array.attempt
        see, _ = self._scheduler.commands([array.run], [job.number])
        log.info("%d tasks of an earlier run still wait or work (%s): joined", len(alive), see)

    def _add(self, array: Array, number: str, throttle: int | None) -> Submitted:
        ids = [self._ids[number] for number in array.numbers]
        indices = self._scheduler.indices(array)
        if array.pulls:
            shards, unclaimed = {}, dict.fromkeys(ids)
            claims = Claims(self._plan.results, array)
        else:
            shards = {index: deque([shard]) for index, shard in zip(indices, ids, strict=True)}
            unclaimed, claims = {}, None
        job = Submitted(array, number, shards, unclaimed, throttle, claims, len(indices))
        self._jobs[array.name] = job
        return job

    def _keep(self, job: Submitted) -> None:
        """Wait for the shards of an array, each where it is."""
        self._placed |= {shard: Placement(job, None) for shard in job.unclaimed}
        for index, shards in job.shards.items():
            self._placed |= {shard: Placement(job, index) for shard in shards}

    def _assign(self, job: Submitted, claims: Iterable[Claim]) -> None:
        """Give shards to the tasks that have claimed them."""
        for claim in claims:
            shards = [self._ids[number] for number in claim.numbers]
            mine = job.shards.setdefault(claim.index, deque())
            for shard in (shard for shard in shards if shard in job.unclaimed):
                del job.unclaimed[shard]
                mine.append(shard)
                if shard in self._placed:
                    self._placed[shard].index = claim.index

    # Following.

    def _confirm(self, listed: list[Tasks]) -> None:
        """Find out whether a submission arrived that got no answer."""
        if self._next is None or not self._asked:
            return
        self._asked, name = False, self._next.name
        number = next((tasks.number for tasks in listed if tasks.name == name), "")
        # A task leaves the number of its array, as all of them may have ended by now.
        with contextlib.suppress(OSError):
            number = number or (self._folder / f"{name}.number").read_text().strip()
        if number:
            self._place(self._next, number, 0)

    def _take_claims(self, listed: list[Tasks]) -> None:
        """Read what tasks have claimed since; see how many of each array wait or work."""
        in_queue = Counter({name: 0 for name in self._jobs})
        for tasks in listed:
            in_queue[tasks.name] += len(tasks.indices)
        for name, job in self._jobs.items():
            job.in_queue = in_queue[name]
            if job.claims and job.unclaimed:
                self._assign(job, job.claims.news())

    def _by_shard(self, listed: list[Tasks]) -> dict[str, Tasks]:
        """The tasks in the queue, by the shard that each of them computes or will compute."""
        queued = {}
        for tasks in listed:
            job = self._jobs.get(tasks.name)
            for index in tasks.indices if job else ():
                shard = self._first(job, index)
                if shard is not None:
                    queued[shard] = tasks
        return queued

    def _first(self, job: Submitted, index: int) -> str | None:
        """The shard that a task is at: the first of its own that has not ended.

        Of a task that pulls shards, those before it are settled here.
        """
        shards = job.shards.get(index)
        while shards:
            placement = self._placed.get(shards[0])
            mine = placement and placement.job is job and placement.index == index
            if mine and not (job.claims and self._ended(shards[0])):
                return shards[0]
            shards.popleft()
        return None

    def _settle(self, queued: dict[str, Tasks]) -> None:
        """Bring the tally up to what the queue, the receipts and the marks say."""
        unknown, troubled = [], {}
        firsts = self._firsts()
        if any(shard not in queued or queued[shard].ending for shard in firsts):
            self._refresh()
        for shard, placement in firsts.items():
            tasks = queued.get(shard)
            if (tasks is None or tasks.ending) and self._ended(shard):
                continue
            if tasks is None:
                unknown.append(shard)
                continue
            placement.gone_since = None
            self._take_state(shard, tasks)
            if trouble := tasks.trouble or self._loss(placement, tasks):
                troubled.setdefault((tasks.number, trouble, tasks.hopeless), []).append(shard)
        self._give_up(troubled)
        self._judge(unknown)

    def _firsts(self) -> dict[str, Placement]:
        """The shard that each task is at, be it in the queue or gone."""
        shards = (
            self._first(job, index)
            for job in list(self._jobs.values())
            for index in list(job.shards)
        )
        return {shard: self._placed[shard] for shard in shards if shard is not None}

    def _refresh(self) -> None:
        """Have a network disk show what other nodes have finished.

        It may remember for a minute that a file was not there; opening the folder makes it ask.
        """
        marks = [self._plan.results.array_folder(run_name) for run_name in self._runs]
        for folder in (*folders(self._plan.results.products), *marks):
            with contextlib.suppress(OSError):  # not there yet
                os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))

    def _take_state(self, shard: str, tasks: Tasks) -> None:
        """A task that is in the queue waits or works."""
        running = shard in self._tally.running
        if tasks.where and not running:
            self._tally.began(shard, tasks.where)
        elif not tasks.where and running:
            self._tally.back(shard)  # requeued by the scheduler or its staff
        if tasks.held:
            self._tally.note(f"tasks of job {tasks.number} are held until you release them")

    def _loss(self, placement: Placement, tasks: Tasks) -> str:
        """Why a task counts as lost though it is in the queue; empty where it does not."""
        now = time.monotonic()
        if not tasks.silent:
            placement.silent_since = None
        elif placement.silent_since is None:
            placement.silent_since = now
        silent = tasks.silent and now - placement.silent_since >= UNHEARD_SECONDS
        return f"lost: {tasks.where} is not heard of" if silent else ""

    def _give_up(self, troubled: dict[tuple[str, str, bool], list[str]]) -> None:
        """Cancel tasks that are in the queue and will not end by themselves."""
        for (number, trouble, hopeless), shards in troubled.items():
            self._scheduler.cancel_tasks(number, [self._placed[shard].index for shard in shards])
            for shard in shards:
                placement = self._placed[shard]
                self._failed(shard, 2 if hopeless else None, f"the scheduler says: {trouble}")
                self._release(placement)

    def _ended(self, shard: str) -> bool:
        """Whether a task tells how it ended, by its receipt or its mark."""
        if missing.is_whole(self._plan, shard):
            self._done(shard)
            return True
        code = self._mark(shard)
        if code is None or code > _SIGNALLED:
            return False  # killed: who did it, the scheduler may know
        if not code:
            self._give_back(shard)
            return True
        self._failed(shard, code, explain(self._plan.results.log("multiply", shard), None))
        return True

    def _mark(self, shard: str) -> int | None:
        """The exit code that a failed task has left."""
        return task.Marks(self._plan.results, self._placed[shard].job.array).code(shard)

    def _judge(self, unknown: list[str]) -> None:
        """Tasks that have left the queue without a word: the scheduler's, or a time, decides."""
        if not unknown:
            return
        now, gone = time.monotonic(), {}
        for placement in (self._placed[shard] for shard in unknown):
            if placement.gone_since is None:
                placement.gone_since = now
            job = placement.job
            gone.setdefault(job.array.name, (job.number, []))[1].append(placement.index)
        fates = self._scheduler.fates({self._jobs[name].array.run for name in gone}, gone)
        for shard in unknown:
            placement = self._placed[shard]
            fate = fates.get((placement.job.array.name, placement.index))
            certain = fate and (fate.certain or self._mark(shard) is not None)
            patience = _TRACE_SECONDS if fate is None or fate.well else _MARK_SECONDS
            if certain or now - placement.gone_since >= patience:
                ran = shard in self._tally.running
                guess = "killed" if ran else "deleted while it waited in the queue"
                self._failed(shard, None, f"the scheduler says: {fate.words if fate else guess}")
                self._release(placement)

    def _take_whole(self, shards: Iterable[str]) -> None:
        """Count those that have become whole."""
        for shard in list(shards):
            if missing.is_whole(self._plan, shard):
                self._done(shard)

    def _done(self, shard: str) -> None:
        if placement := self._placed.pop(shard, None):
            placement.job.useful = True
        self._tally.done(shard)

    def _give_back(self, shard: str) -> None:
        """A shard waits again through no failure of its own."""
        placement = self._placed.pop(shard)
        placement.job.useful = True  # who gives up a shard in order is no task that cannot begin
        self._tally.back(shard)

    def _end_pulling(self, listed: list[Tasks]) -> None:
        """Settle what no task of an array is going to claim, and spare tasks without work a start.

        An array whose tasks have all left without a finished shard costs each of them a try.
        """
        for job in self._jobs.values():
            if not job.claims:
                continue
            if not job.unclaimed:
                self._cancel_idle(job, listed)
            elif job.in_queue:
                job.gone_since = None
            elif job.gone_since is None:
                job.gone_since = time.monotonic()
            elif time.monotonic() - job.gone_since >= _MARK_SECONDS:
                self._drop_unclaimed(job)

    def _cancel_idle(self, job: Submitted, listed: list[Tasks]) -> None:
        waiting = [
            index
            for tasks in listed
            if tasks.name == job.array.name and not tasks.where
            for index in tasks.indices
            if not job.shards.get(index)
        ]
        if waiting:
            self._scheduler.cancel_tasks(job.number, waiting)

    def _drop_unclaimed(self, job: Submitted) -> None:
        """All tasks of an array have left, and nobody has these shards."""
        words = "no task of its array could compute"
        for path in sorted(
            self._plan.results.array_folder(job.array.run).glob(f"{job.array.name}.*.log")
        ):
            words = f"{words}: {explain(path, None)} (log: {path})"
            break
        for shard in list(job.unclaimed):
            if job.useful:
                self._give_back(shard)
            else:
                self._failed(shard, None, words)
        job.unclaimed.clear()

    def _release(self, placement: Placement) -> None:
        """A task is gone in the middle of a shard: what it had claimed beside that waits again."""
        job, index = placement.job, placement.index
        for shard in job.shards.pop(index, ()) if job.claims else ():
            other = self._placed.get(shard)
            if other and other.job is job and other.index == index and not self._ended(shard):
                self._give_back(shard)

    def _failed(self, shard: str, code: int | None, reason: str) -> None:
        self._placed.pop(shard, None)
        if self._tally.failed(shard, code, reason):
            self._attempts[shard] = self._attempts.get(shard, 1) + 1

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
            self._next = self._next or self._prepare()
            if self._next is None:
                return
            array, self._asked = self._next, True
            words, _ = self._request.at(array.attempt)
            file = self._folder / f"{array.name}.sh"
            try:
                number = self._scheduler.submit(array, words, file, room)
            except QueueFull as error:
                self._wait_for_room(str(error))
            except InputError as error:
                self._refused(error)
            else:
                self._size = min(self._most, 2 * self._size)
                self._place(array, number, room or 0)
            self._asked = False

    def _prepare(self) -> Array | None:
        """Note the next array, and write its script; None where nothing is to be submitted."""
        attempts = {
            shard: self._attempts.get(shard, 1)
            for shard in self._tally.waiting
            if shard not in self._placed
        }
        if not attempts:
            return None
        attempt = min(attempts.values())
        wanted = sorted(self._numbers[shard] for shard in attempts if attempts[shard] == attempt)
        if len(wanted) > (most := min(self._most_tasks, self._most)):
            first, numbers, tasks = 0, tuple(wanted), min(most, self._size)
        else:
            first, numbers = self._scheduler.cut(wanted, self._reach, self._size)
            tasks = len(numbers)
        self._count += 1
        name, request = f"{prefix(self._run)}{self._count}", self._request
        array = Array(
            request.scheduler, self._run, self._plan_digest, name, attempt, first, numbers, tasks
        )
        words, memory = request.at(attempt)
        find_number, run_time = self._scheduler.find_number(array), self._scheduler.run_time(words)
        text = task.script(self._plan, array, find_number, request.setup, memory, run_time)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._plan.results.log("multiply").parent.mkdir(parents=True, exist_ok=True)
        (self._folder / f"{name}.sh").write_text(text)
        journal.note(self._plan.results, array)
        return array

    def _refused(self, error: InputError) -> None:
        """The scheduler refuses what the recipe says; where it has taken arrays, that is no end."""
        if not self._jobs:
            raise error
        array, self._next = self._next, None
        for number in array.numbers:
            words = f"{self._scheduler.title} did not take it: {error}"
            self._failed(self._ids[number], 2, words)

    def _place(self, array: Array, number: str, throttle: int) -> None:
        """An array is the scheduler's now."""
        self._keep(self._add(array, number, throttle))
        self._next = None
        tasks = f" to {array.tasks} tasks" if array.pulls else ""
        log.info("%d shards submitted%s: %s job %s, try %d", len(array.numbers), tasks,
                 self._scheduler.title, number, array.attempt)  # fmt: skip

    def _wait_for_room(self, reason: str) -> None:
        """The queue is full: try half of it, and with one task left, later."""
        if self._next.tasks > 1:
            self._size = max(1, self._next.tasks // 2)
            self._next = None
            return
        self._full_until = time.monotonic() + _FULL_SECONDS
        self._tally.note(
            f"{self._scheduler.title} takes no more tasks now ({reason}); waiting until some ended"
        )

    # The limit of tasks at once, which holds for all arrays together.

    def _room(self) -> int | None:
        """Tasks that a next array may run at once; None where there is no limit."""
        return None if self._limit is None else self._limit - sum(self._shares().values())

    def _shares(self) -> dict[str, int]:
        """How many tasks of each array may run at once: earlier arrays first."""
        left, shares = self._limit or 0, {}
        waited_for = Counter(placement.job.array.name for placement in self._placed.values())
        for name, job in self._jobs.items():
            shares[name] = min(left, job.in_queue if job.claims else waited_for[name])
            left -= shares[name]
        return shares

    def _raise_throttles(self, listed: list[Tasks]) -> None:
        """Give a later array what earlier ones do not need any more, and joined ones our limit."""
        shares = self._shares()
        for name in {tasks.name for tasks in listed if not tasks.where} & self._jobs.keys():
            # 0 would mean no limit; a joined array that gets no share yet goes on by one.
            job, share = self._jobs[name], max(1, shares[name]) if self._limit else 0
            if job.throttle is None or share > job.throttle:
                with contextlib.suppress(InputError):  # it ended meanwhile
                    self._scheduler.throttle(job.number, share)
                job.throttle = share

    # Leaving.

    def cancel(self) -> None:
        """Cancel all tasks, those of dispatches that were to be joined as well."""
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
        cancel_detached(self._request.scheduler, runs)


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


def cancel_detached(scheduler: str, runs: Iterable[str]) -> None:
    """Have a process of its own cancel all tasks: snakemake gives this one little time."""
    subprocess.Popen(
        [sys.executable, "-m", __name__, scheduler, *runs],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip


def cancel(scheduler: Scheduler, runs: Iterable[str]) -> None:
    """Cancel all tasks of some dispatches, until the queue has none of them; at most ten minutes.

    A submission that was cut off may still arrive: so none has to be seen twice.
    """
    end, empty = time.monotonic() + _CANCEL_SECONDS, 0
    while empty < 2 and time.monotonic() < end:
        with contextlib.suppress(TryAgain):
            some = [scheduler.cancel(run_name) for run_name in runs]
            empty = 0 if any(some) else empty + 1
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    cancel(SCHEDULERS[sys.argv[1]], sys.argv[2:])
