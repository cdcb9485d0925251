"""Array jobs: one submission for all missing shards, followed to the end by one process.

Tasks claim shards (`claims`) and compute one after another (`puller`). A receipt says that a shard
is whole, a mark how it was left; if a task left neither, the state of its job decides.

Arrays are noted in ``results/arrays.tsv`` before they are submitted. If this process dies, its
tasks keep running, and the next run joins them. If it is interrupted, it cancels them.
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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from shardwise.dispatch.array import journal, recipe, task
from shardwise.dispatch.array.claims import Claims
from shardwise.dispatch.array.recipe import TaskRequest
from shardwise.dispatch.schedulers.common import (
    UNHEARD_SECONDS,
    Array,
    QueueFull,
    Scheduler,
    Tasks,
    prefix,
)
from shardwise.dispatch.schedulers.registry import SCHEDULERS
from shardwise.dispatch.tally import Tally, holding
from shardwise.errors import InputError, TryAgain
from shardwise.files.paths import folders
from shardwise.plan.plan import Plan
from shardwise.records.logs import explain, find_exit_code, read_tail
from shardwise.records.store import Store

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""The least pause between two looks at the queue."""

_LONG_LOOK_SECONDS = 15.0
"""The longest, unless a look takes long: pauses grow to a fiftieth of the run's time so far."""

_SLOW_LOOK_SECONDS = 60.0  # the longest of all, after a look or a submission that took long itself
_FULL_SECONDS = 10.0  # the pause before the next submission to a full queue

_TRACE_SECONDS = 60.0
"""How long a receipt, a mark or a record may take to arrive after a task has left the queue.

A network disk may take as long to show a file that another node has finished.
"""

_MARK_SECONDS = 10.0
"""The same where the scheduler says that the task failed: then no receipt will come."""

MOST_RETURNS = 10
"""How often in a row a shard may be handed back at no cost, while no shard of the run ends.

Tasks may be ended again and again before they finish one, for example if a cluster preempts often.
"""

_CANCEL_SECONDS = 600.0  # how long a cancellation is tried, if the scheduler does not answer

_CANCELLED = "cancelled"
"""A file in the folder of a dispatch: its tasks are being cancelled, so do not join them."""


def run(
    plan: Plan, file: Path | None, limit: int | None = None, retries: int | None = None,
    most_tasks: int | None = None,
) -> None:  # fmt: skip
    """Compute all missing shards in array tasks; return when all are whole.

    Parameters
    ----------
    file
        What a task asks the scheduler for (`recipe`); None: what snakemake last wrote.
    limit
        Tasks that run at once; None: as many as the scheduler lets run. With a limit, an array is
        submitted once the previous one has ended.
    retries
        Tries after the first of one shard; None: what the recipe says.
    most_tasks
        Tasks of an array; None: one per shard, up to `recipe.MOST_TASKS`.

    Raises
    ------
    InputError
        If this machine has no scheduler.
    TryAgain
        If another process computes these shards, tasks of another plan live, or the snakemake that
        started this process has ended.
    ShardwiseError
        If shards failed, after all others are whole; see :meth:`Tally.finish`.
    """
    request = recipe.load(file or recipe.path(plan.results))
    with holding(plan.results):
        tries_left = request.retries if retries is None else retries
        tally = Tally(plan, Store(plan).missing(), tries_left)
        dispatch = ArrayDispatch(plan, request, limit, tally, most_tasks or recipe.MOST_TASKS)
        try:
            dispatch.follow()
        except BaseException as error:
            # Interrupted or told to end. (After an error the tasks keep running, to be joined.)
            if not isinstance(error, Exception):
                for number in (signal.SIGINT, signal.SIGTERM):
                    signal.signal(number, signal.SIG_IGN)  # a second one must not cut this short
                dispatch.cancel()
            raise
        tally.finish()


@dataclass(eq=False)
class Worker:
    """A task of an array, and its claimed shards that have not ended, in the order of claiming."""

    index: int
    shards: deque[str] = field(default_factory=deque)
    gone_since: float | None = None  # since when it has not been in the queue
    silent_since: float | None = None  # since when its node has not responded


@dataclass(eq=False)
class Submitted:
    """An array that the scheduler has accepted."""

    array: Array
    number: str
    claims: Claims
    unclaimed: dict[str, None]  # shards that no task has
    in_queue: int  # tasks that wait or work
    workers: dict[int, Worker] = field(default_factory=dict)
    gone_since: float | None = None  # since when no task has been in the queue
    # Whether a task has finished a shard or ended in an orderly way: then others can as well.
    useful: bool = False
    trouble: str = ""  # why a task could not start
    hopeless: bool = False  # whether a new submission would fail the same way

    def worker(self, index: int) -> Worker:
        """The task with an index."""
        return self.workers.setdefault(index, Worker(index))

    def shards(self) -> Iterator[str]:
        """The shards that have not ended."""
        return chain(self.unclaimed, *(worker.shards for worker in self.workers.values()))


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
        self._attempts: dict[str, int] = {}  # the next attempt of each shard, if not 1
        self._returns: Counter[str] = Counter()  # of each shard, since a shard ended
        # The next array, from its note to the scheduler's answer; it may have arrived unanswered.
        self._next: Array | None = None
        self._most = self._size = 0  # the most tasks of any array, and of the next
        self._full_until = 0.0
        self._count = 0

    def follow(self) -> None:
        """Submit and look until every shard is whole or has failed for good.

        Raises TryAgain if tasks of another plan live, or snakemake has ended.
        """
        start = time.monotonic()
        while not self._tally.ended:
            began = time.monotonic()
            try:
                self._look()
            except _Refused:
                raise
            except TryAgain as error:
                for job in self._jobs.values():
                    for worker in job.workers.values():
                        worker.silent_since = None  # after a restart no node has reported yet
                self._tally.note(
                    f"{self._scheduler.title} does not answer ({error}); its tasks keep running, "
                    "and this continues when it answers"
                )
                self._take_whole(self._tally.running)
            self._tally.report()
            if not self._tally.ended:
                now = time.monotonic()
                late = min(_LONG_LOOK_SECONDS, (now - start) / 50)
                slow = min(_SLOW_LOOK_SECONDS, 5 * (now - began))
                self._pause(max(LOOK_SECONDS, late, slow))

    def _pause(self, seconds: float) -> None:
        """Wait; end if the snakemake that started this process has ended."""
        if self._guardian is None:
            time.sleep(seconds)
        elif select.select([self._guardian], [], [], seconds)[0]:
            living = [job.number for job in self._jobs.values()]
            raise _Refused(
                "the snakemake that started this has ended; the tasks work on, and the next run "
                f"joins them ({self._scheduler.commands(self._runs, living)[0]})"
            )

    def _look(self) -> None:
        """Ask the scheduler once, settle what has ended, submit what is to be tried."""
        if not self._joined and not self._join():
            return
        listed = self._scheduler.tasks(self._runs)
        self._confirm(listed)
        queued = [(self._jobs[tasks.name], tasks) for tasks in listed if tasks.name in self._jobs]
        for job, tasks in queued:
            if tasks.number != job.number:  # submitted twice: the first was late to arrive
                self._scheduler.cancel_tasks(tasks.number, tasks.indices)
        queued = [(job, tasks) for job, tasks in queued if tasks.number == job.number]
        for job in self._jobs.values():
            job.in_queue = sum(len(tasks.indices) for own, tasks in queued if own is job)
            self._take_claims(job)
        self._settle(queued)
        for job in self._jobs.values():
            self._settle_unclaimed(job, queued)
        self._submit()

    # Joining.

    def _join(self) -> bool:
        """Take over living tasks of earlier dispatches; False while some are being cancelled.

        Raises TryAgain if some are of another plan.
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
        for array in reversed(arrays):  # the last array has the last try of a shard
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
        alive = {index for tasks in living for index in tasks.indices}
        job = self._add(array, living[0].number, len(alive))
        self._take_claims(job)
        # Shards of tasks that are gone are submitted again, unless they are whole.
        job.workers = {index: job.workers[index] for index in job.workers.keys() & alive}
        self._attempts |= dict.fromkeys(job.shards(), array.attempt)
        see, _ = self._scheduler.commands([array.run], [job.number])
        log.info("%d tasks of an earlier run still wait or work (%s): joined", len(alive), see)

    def _unplaced(self) -> set[str]:
        """The waiting shards that no array has."""
        return set(self._tally.waiting).difference(*(job.shards() for job in self._jobs.values()))

    def _add(self, array: Array, number: str, in_queue: int) -> Submitted:
        """Wait for those shards of an array that no other array has."""
        wanted = self._unplaced()
        ids = [self._ids[number] for number in array.numbers]
        unclaimed = {shard: None for shard in ids if shard in wanted}
        claims = Claims(self._plan.results, array)
        self._jobs[array.name] = Submitted(array, number, claims, unclaimed, in_queue)
        return self._jobs[array.name]

    def _take_claims(self, job: Submitted) -> None:
        """Give shards to the tasks that have claimed them."""
        for claim in job.claims.news() if job.unclaimed else ():
            for shard in (self._ids[number] for number in claim.numbers):
                if shard in job.unclaimed:
                    del job.unclaimed[shard]
                    job.worker(claim.index).shards.append(shard)

    # Following.

    def _confirm(self, listed: list[Tasks]) -> None:
        """Find out whether an unanswered submission has arrived."""
        if self._next is None:
            return
        name = self._next.name
        number = next((tasks.number for tasks in listed if tasks.name == name), "")
        # Each task writes down the number of its array, as all tasks may have ended by now.
        with contextlib.suppress(OSError):
            number = number or (self._folder / f"{name}.number").read_text().strip()
        if number:
            self._place(self._next, number)

    def _settle(self, queued: list[tuple[Submitted, Tasks]]) -> None:
        """Bring the tally up to date with the queue, the receipts and the marks."""
        living = {(job.array.name, i) for job, tasks in queued for i in tasks.indices
                  if not tasks.ending}  # fmt: skip
        working = [(j, w) for j in self._jobs.values() for w in j.workers.values() if w.shards]
        if any((job.array.name, worker.index) not in living for job, worker in working):
            self._refresh()
        for job, worker in working:
            while worker.shards and self._ended(job, worker.shards[0]):
                worker.shards.popleft()
        for job, tasks in queued:
            self._take_state(job, tasks)
        listed = {(job.array.name, index) for job, tasks in queued for index in tasks.indices}
        gone = [(j, w) for j, w in working if w.shards and (j.array.name, w.index) not in listed]
        if gone:
            self._judge(gone)

    def _refresh(self) -> None:
        """Have a network disk show what other nodes have finished.

        It may remember for a minute that a file did not exist; opening the folder makes it ask.
        """
        marks = [self._plan.results.array_folder(run_name) for run_name in self._runs]
        for folder in (*folders(self._plan.results.products), *marks):
            with contextlib.suppress(OSError):  # not there yet
                os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))

    def _take_state(self, job: Submitted, tasks: Tasks) -> None:
        """Take in the state of tasks in the queue; cancel those that would never end."""
        if tasks.held:
            self._tally.note(f"tasks of job {tasks.number} are held until you release them")
        lost = []
        for worker in map(job.worker, tasks.indices):
            worker.gone_since = None
            if worker.shards:
                self._take_place(worker.shards[0], tasks.where)
            if tasks.trouble or self._is_lost(worker, tasks):
                lost.append(worker)
        if not lost:
            return
        reason = tasks.trouble or f"lost: {tasks.where} does not respond"
        self._scheduler.cancel_tasks(tasks.number, [worker.index for worker in lost])
        job.trouble, job.hopeless = f"the scheduler says: {reason}", tasks.hopeless
        for worker in lost:
            if worker.shards:
                self._lose(job, worker, job.trouble, job.hopeless)
        self._tally.note(f"tasks of job {tasks.number} are cancelled; {job.trouble}")

    def _take_place(self, shard: str, where: str) -> None:
        running = shard in self._tally.running
        if where and not running:
            self._tally.began(shard, where)
        elif not where and running:
            self._tally.back(shard)  # requeued by the scheduler or its staff

    def _is_lost(self, worker: Worker, tasks: Tasks) -> bool:
        """Whether a task counts as lost although it is in the queue."""
        if not tasks.silent:
            worker.silent_since = None
            return False
        worker.silent_since = worker.silent_since or time.monotonic()
        return time.monotonic() - worker.silent_since >= UNHEARD_SECONDS

    def _ended(self, job: Submitted, shard: str) -> bool:
        """Settle a shard that has a receipt or a mark; whether it has one."""
        if Store(self._plan).is_whole(shard):
            job.useful = True
            self._done(shard)
            return True
        code = task.Marks(self._plan.results, job.array).code(shard)
        if code is None:
            return False
        if code:
            self._failed(shard, code, explain(self._plan.results.log("multiply", shard), None))
        else:
            job.useful = True  # a task that hands back a shard was able to start
            self._give_back(shard)
        return True

    def _judge(self, gone: list[tuple[Submitted, Worker]]) -> None:
        """Settle tasks that left the queue without a mark, by their fates or after a time."""
        now, left = time.monotonic(), {}
        for job, worker in gone:
            worker.gone_since = worker.gone_since or now
            left.setdefault(job.array.name, (job.number, []))[1].append(worker.index)
        fates = self._scheduler.fates({job.array.run for job, _ in gone}, left)
        for job, worker in gone:
            fate = fates.get((job.array.name, worker.index))
            patience = _TRACE_SECONDS if fate is None or fate.well else _MARK_SECONDS
            if (fate and fate.certain) or now - worker.gone_since >= patience:
                words = fate.words if fate else "killed"
                self._lose(job, worker, f"the scheduler says: {words}")

    def _lose(self, job: Submitted, worker: Worker, reason: str, final: bool = False) -> None:
        """Settle a task that died in a shard: the shard has failed, its other claims wait again."""
        computed = task.last_begun(self._plan.results, worker.shards)
        worker.shards.remove(computed)
        self._failed(computed, 2 if final else None, reason)
        while worker.shards:
            shard = worker.shards.popleft()
            if not self._ended(job, shard):
                self._give_back(shard)

    def _take_whole(self, shards: Iterable[str]) -> None:
        """Count the shards that have become whole."""
        for shard in list(shards):
            if Store(self._plan).is_whole(shard):
                self._done(shard)

    def _done(self, shard: str) -> None:
        self._returns.clear()
        self._tally.done(shard)

    def _give_back(self, shard: str) -> None:
        """A shard waits again, through no fault of its own; too often in a row is a failed try."""
        self._returns[shard] += 1
        if self._returns[shard] < MOST_RETURNS:
            self._tally.back(shard)
            return
        del self._returns[shard]
        words = f"handed back {MOST_RETURNS} times in a row while no shard of the run ended"
        self._count_try(shard, None, f"{words}: its tasks were ended too early")

    def _failed(self, shard: str, code: int | None, reason: str) -> None:
        self._returns.clear()
        self._count_try(shard, code, reason)

    def _count_try(self, shard: str, code: int | None, reason: str) -> None:
        if self._tally.failed(shard, code, reason):
            self._attempts[shard] = self._attempts.get(shard, 1) + 1

    def _settle_unclaimed(self, job: Submitted, queued: list[tuple[Submitted, Tasks]]) -> None:
        """Settle shards that no task will claim, and cancel waiting tasks that have no work left.

        If all tasks of an array ended without finishing a shard, each shard loses a try.
        """
        if not job.unclaimed:
            waiting = [tasks.indices for own, tasks in queued if own is job and not tasks.where]
            idle = [i for indices in waiting for i in indices if not job.worker(i).shards]
            if idle:
                self._scheduler.cancel_tasks(job.number, idle)
        elif job.in_queue:
            job.gone_since = None
        elif job.gone_since is None:
            job.gone_since = time.monotonic()
        elif time.monotonic() - job.gone_since >= _MARK_SECONDS:
            self._drop_unclaimed(job)

    def _drop_unclaimed(self, job: Submitted) -> None:
        """Settle shards that no task claimed before all tasks of their array ended."""
        code, words = 2 if job.hopeless else None, job.trouble
        if not words:
            folder = self._plan.results.array_folder(job.array.run)
            path = next(iter(sorted(folder.glob(f"{job.array.name}.*.log"))), None)
            code = find_exit_code(read_tail(path)) if path else None
            words = f"no task of its array could compute: {explain(path, None)}"
            words += f" (log: {path})" if path else ""
        # A task that was told to end before it claimed a shard could have computed, as others did.
        told_to_end = code == 128 + signal.SIGTERM and any(j.useful for j in self._jobs.values())
        for shard in list(job.unclaimed):
            if self._ended(job, shard):  # its claim could not be read
                continue
            if job.useful or told_to_end:
                self._give_back(shard)
            else:
                self._failed(shard, code, words)
        job.unclaimed.clear()

    # Submission.

    @property
    def _folder(self) -> Path:
        return self._plan.results.array_folder(self._run)

    def _submit(self) -> None:
        """Submit what is to be tried, as far as the scheduler and the limit allow."""
        if not self._most:
            self._size = self._most = self._scheduler.most_tasks()
        began = time.monotonic()
        # If a submission takes long, as to a full queue, others wait until after the next look.
        while self._full_until <= time.monotonic() <= began + LOOK_SECONDS:
            if self._limit and any(job.in_queue for job in self._jobs.values()):
                return
            self._next = self._next or self._prepare()
            if self._next is None:
                return
            array = self._next
            words, _ = self._request.at(array.attempt)
            file = self._folder / f"{array.name}.sh"
            try:
                number = self._scheduler.submit(array, words, file, self._limit)
            except QueueFull as error:
                self._wait_for_room(str(error))
            except InputError as error:
                self._refused(error)
            else:
                self._size = min(self._most, 2 * self._size)
                self._place(array, number)

    def _prepare(self) -> Array | None:
        """Note the next array, and write its script; None if there is nothing to submit."""
        attempts = {shard: self._attempts.get(shard, 1) for shard in self._unplaced()}
        if not attempts:
            return None
        attempt = min(attempts.values())
        wanted = sorted(self._numbers[shard] for shard in attempts if attempts[shard] == attempt)
        most = min(len(wanted), self._most_tasks, self._most)
        tasks = min(most, self._size)
        # An array with fewer tasks, because the queue is full, leaves work to the next one.
        numbers = tuple(wanted[: -(-len(wanted) * tasks // most)])
        self._count += 1
        name, request = f"{prefix(self._run)}{self._count}", self._request
        array = Array(
            request.scheduler, self._run, self._plan_digest, name, attempt, numbers, tasks
        )
        words, memory = request.at(attempt)
        scheduler = self._scheduler
        text = task.script(
            self._plan, array, scheduler.own_index, request.setup, memory, scheduler.run_time(words)
        )
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / f"{name}.sh").write_text(text)
        journal.note(self._plan.results, array)
        return array

    def _refused(self, error: InputError) -> None:
        """The scheduler refuses a submission; if it accepted arrays before, the run continues."""
        if not self._jobs:
            raise error
        array, self._next = self._next, None
        for number in array.numbers:
            words = f"{self._scheduler.title} did not accept it: {error}"
            self._failed(self._ids[number], 2, words)

    def _place(self, array: Array, number: str) -> None:
        """Record that the scheduler has accepted the next array."""
        self._add(array, number, array.tasks)
        self._next = None
        log.info("%d shards submitted to %d tasks: %s job %s, try %d", len(array.numbers),
                 array.tasks, self._scheduler.title, number, array.attempt)  # fmt: skip

    def _wait_for_room(self, reason: str) -> None:
        """The queue is full: try half the tasks, or, if that is one already, try later."""
        if self._next.tasks > 1:
            self._size = max(1, self._next.tasks // 2)
            self._next = None
            return
        self._full_until = time.monotonic() + _FULL_SECONDS
        self._tally.note(
            f"{self._scheduler.title} accepts no more tasks now ({reason}); waiting until some end"
        )

    # Leaving.

    def cancel(self) -> None:
        """Cancel all tasks, including those of dispatches that were to be joined."""
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
    """Whatever the scheduler answers, this run cannot continue."""


def guardian(lock: Path) -> int | None:
    """A descriptor that becomes readable when the snakemake whose job this is ends.

    It is the ancestor of this process that holds the lock open. None if there is none (this
    process was started by hand), or if Python or the kernel cannot tell.
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
    """Cancel all tasks from a separate process, as snakemake gives this one little time."""
    subprocess.Popen(
        [sys.executable, "-m", __name__, scheduler, *runs],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip


def cancel(scheduler: Scheduler, runs: Iterable[str]) -> None:
    """Cancel all tasks of some dispatches, until the queue has none of them; at most ten minutes.

    A submission that was cut off may still arrive, so the queue must be seen empty twice.
    """
    end, empty = time.monotonic() + _CANCEL_SECONDS, 0
    while empty < 2 and time.monotonic() < end:
        with contextlib.suppress(TryAgain):
            some = [scheduler.cancel(run_name) for run_name in runs]
            empty = 0 if any(some) else empty + 1
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    cancel(SCHEDULERS[sys.argv[1]], sys.argv[2:])
