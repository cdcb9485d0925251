"""The pipeline: bytes arrive in order, whatever the slabs; what fails leaves nothing behind."""

import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import product
from queue import SimpleQueue
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.files import commit as commits
from shardwise.files import pieces as piecess
from shardwise.files.checksum import PieceChecksum
from shardwise.files.npy import StackWriter
from shardwise.multiply import batch, job, operation
from shardwise.multiply import session as sessions
from shardwise.multiply.lanes import HostLane
from shardwise.multiply.pipeline import Drain
from shardwise.multiply.session import Session
from shardwise.numerics import reference
from shardwise.plan import memory as plan_memory
from shardwise.plan.stack import StackReader
from shardwise.records import receipts

from tests import factories
from tests.factories import REFERENCES, leftovers, noise, save, stack


class Track:
    """Copies that are made in order, and only once the mark of one or of a later is waited for."""

    def __init__(self):
        self._ahead, self._made, self._lock = deque(), 0, threading.Lock()

    def add(self, copy):
        """The mark of a copy."""
        with self._lock:
            self._ahead.append(copy)
            return SimpleNamespace(wait=partial(self._catch_up, self._made + len(self._ahead)))

    def _catch_up(self, number):
        with self._lock:
            for _ in range(self._made, number):
                self._ahead.popleft()()
                self._made += 1
        return 2 * (time.perf_counter(),)


class LateLane(HostLane):
    """A lane whose copies are as late as those of a device may be."""

    def __init__(self):
        super().__init__()
        self._up, self._down = Track(), Track()

    def upload(self, views, target):
        return self._up.add(lambda: HostLane.upload(self, views, target))

    def download(self, source, target):
        return self._down.add(lambda: HostLane.download(self, source, target))

    @contextmanager
    def work(self):
        """After all uploads so far."""
        self._up.add(lambda: None).wait()
        with super().work() as began:
            yield began


class BrokenError(Exception):
    """Something that nobody expected."""


RIGHTS = {"A @ B": (4, 11), "A.T @ A": None}


@given(
    data=st.data(),
    slab=st.integers(1, 3000),
    batch=st.integers(1, 3000),
    lane=st.sampled_from([HostLane, LateLane]),
    memory=st.sampled_from([None, 1]),
)
def test_every_byte_comes_in_order(tmp_path_factory, data, slab, batch, lane, memory):
    """Any slabs, in any number, and batches of any size: each byte once, from several files.

    No slab is read into, and no batch written over, while it is still copied from.
    """
    folder, way = tmp_path_factory.mktemp("a"), data.draw(st.sampled_from(list(RIGHTS)))
    left = stack((data.draw(st.integers(1, 37)), 3, 4), "float32")
    for i, matrix in enumerate(left):
        save(folder / "in" / f"{i:02}.npy", np.asarray(matrix, order="CF"[i % 2]))
    right = RIGHTS[way] and stack((len(left), *RIGHTS[way]), "float32", 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(piecess, "SLAB_BYTES", slab)
        patch.setattr(plan_memory, "HOST_BATCH_BYTES", batch)
        patch.setattr(sessions, "HostLane", lane)
        over = {"input": str(folder / "in"), "materialize": False, "product": way}
        made = factories.plan(folder, right=right, shards=1, **over)
        job.run_shard(made, "00000", memory)
    np.testing.assert_array_equal(factories.products(made), REFERENCES[way](left, right))
    receipt = factories.receipt(made)
    receipts.check_file(made.results.product("00000"), receipt.file)


def test_a_slow_witness_holds_up_neither_the_device_nor_other_slabs(tmp_path, monkeypatch):
    """Pieces go on before they are witnessed, and are there until they were."""
    update, handed_on = reference.Reference.update, threading.Event()

    def late(self, offset, views):
        assert offset or handed_on.wait(60)
        update(self, offset, views)

    monkeypatch.setattr(reference.Reference, "update", late)
    monkeypatch.setattr(piecess, "SLAB_BYTES", 1000)
    made = factories.plan(tmp_path, noise((40, 8, 8)), shards=1, materialize=False)
    job.ShardJob(Session(made, 0), "00000").run(handed_on.set)


class LastComeFirst:
    """A semaphore that is as unfair as one may be: a place goes to who asked last."""

    def __init__(self, places):
        self._places, self._waiting, self._lock = places, [], threading.Lock()

    def __enter__(self):
        """Wait for a place."""
        with self._lock:
            if self._places:
                self._places -= 1
                return
            self._waiting.append(mine := threading.Event())
        mine.wait()

    def __exit__(self, *error):
        """Give it back."""
        self.release()

    def release(self, n=1):
        """Give places back."""
        with self._lock:
            for _ in range(n):
                if self._waiting:
                    self._waiting.pop().set()
                else:
                    self._places += 1


def test_no_shard_takes_the_room_that_an_earlier_one_waits_for(tmp_path, monkeypatch):
    """Each waits for the one before, in threads as those of a worker; slow witnesses keep slabs."""
    update, random = reference.Reference.update, Random(0)

    def late(self, offset, views):
        time.sleep(0.02 * random.random())
        update(self, offset, views)

    monkeypatch.setattr(reference.Reference, "update", late)
    monkeypatch.setattr(piecess, "SLAB_BYTES", 1000)
    threads = SimpleNamespace(Semaphore=LastComeFirst, Thread=threading.Thread)
    monkeypatch.setattr(sessions, "threading", threads)
    left = noise((120, 8, 8))
    made = factories.plan(tmp_path, left, shards=30, materialize=False)
    session, ids = Session(made, 0), iter(made.shards)
    ahead, behind = ThreadPoolExecutor(1, "ahead"), ThreadPoolExecutor(1, "behind")
    begun = SimpleQueue()

    def begin():
        shard = next(ids, None)
        begun.put(ahead.submit(lambda: shard and job.ShardJob(session, shard).begin()))

    def work():
        before = behind.submit(list)
        begin()
        while (following := begun.get().result()) is not None:
            steps = following.steps(begin)
            next(steps)
            before.result()
            next(steps)
            before = behind.submit(list, steps)
        before.result()

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(60)
    assert not worker.is_alive()
    np.testing.assert_array_equal(factories.products(made), factories.multiplied(made, left))


# Whole shards that fail.


FAILURES = {
    "the start": (receipts, "note_start"),
    "reading": (StackReader, "read_bytes"),
    "hashing what is read": (PieceChecksum, "update"),
    "witnessing what is read": (reference.Reference, "update"),
    "memory of a slab": (HostLane, "slab"),
    "upload": (HostLane, "upload"),
    "work": (batch.Batches, "work"),
    "download": (HostLane, "download"),
    "fetching a report": (operation.BatchReport, "fetched"),
    "examining": (batch.ShardChecks, "examine"),
    "writing": (StackWriter, "write_at"),
    "handing over a slab": (Drain, "_flush"),
    "the end": (Drain, "finish"),
    "rename": (commits, "_rename"),
}
ONCE = ("the start", "the end", "rename")  # what is done once
FEW = 3
"""A call in the middle; then there are as few slabs as may be."""

LAST = 130
"""The piece that no other one follows, who would tell of a failure."""


def fail(monkeypatch, where, error, call):
    """Make the nth call of a function raise an error, and count the batches."""
    owner, name = FAILURES[where]
    original, calls, worked = getattr(owner, name), [], []

    def broken(*arguments, **named):
        calls.append(None)
        if len(calls) == call:
            raise error
        return original(*arguments, **named)

    monkeypatch.setattr(owner, name, broken)
    work = batch.Batches.work
    monkeypatch.setattr(batch.Batches, "work", lambda *a: worked.append(None) or work(*a))
    return worked


@pytest.mark.parametrize(
    ("where", "call"), [*product(FAILURES, (1, FEW)), ("witnessing what is read", LAST)]
)
def test_a_failure_anywhere_ends_the_shard_and_no_other(tmp_path, monkeypatch, where, call):
    """It ends with that very error, before the other batches; no file, thread or slab is left.

    The shard after it is right, and so is the next attempt.
    """
    matrix = 8 * 8 * 8
    monkeypatch.setattr(piecess, "SLAB_BYTES", 3 * matrix + 40)
    monkeypatch.setattr(plan_memory, "HOST_BATCH_BYTES", 2 * matrix)
    left, taken, new = noise((800, 8, 8)), [], HostLane._new_slab
    made = factories.plan(tmp_path, left, shards=2, materialize=False)
    monkeypatch.setattr(HostLane, "_new_slab", lambda self, n: taken.append(n) or new(self, n))
    error, before = BrokenError(where), set(threading.enumerate())
    memory, slabs = None, plan_memory.READ_SLABS + plan_memory.WRITE_SLABS
    if call == FEW:
        memory, slabs = 1, 2 * plan_memory.FEWEST_SLABS
    session = Session(made, 0, memory)
    with monkeypatch.context() as patch:
        worked = fail(patch, where, error, 1 if where in ONCE else call)
        with pytest.raises(BrokenError) as caught:
            job.ShardJob(session, "00000").run()
    assert caught.value is error
    assert set(threading.enumerate()) <= before
    assert not leftovers(tmp_path)
    assert not made.results.product("00000").exists()
    assert not made.results.receipt("00000").exists()
    # A failed write is noticed when its slab is used again: all of them may be filled before.
    assert where in ONCE or call == LAST or len(worked) < 40
    for shard in ("00001", "00000"):
        job.ShardJob(session, shard).run()
    assert len(taken) <= slabs
    np.testing.assert_array_equal(factories.products(made), factories.multiplied(made, left))


def test_a_slab_that_was_given_back_is_used_again():
    """Memory of slabs is that of the most that were out at once, whatever sizes come."""
    lane = HostLane()
    first, second = lane.slab(1000), lane.slab(3000)
    lane.keep(first)
    lane.keep(second)
    assert lane.slab(2000) is second
    assert lane.slab(500) is first
    lane.keep(first)
    larger = lane.slab(4000)  # in place of the one that was too small
    lane.keep(larger)
    assert lane.slab(100) is larger
    assert lane.slab(100) is not first


@pytest.mark.parametrize("materialize", [True, False])
@pytest.mark.parametrize("keep", ["products", "sum"])
def test_a_session_takes_its_slabs_once(tmp_path, monkeypatch, keep, materialize):
    """Shards that follow each other, the next read while one is computed, share their slabs."""
    monkeypatch.setattr(piecess, "SLAB_BYTES", 1000)
    taken, new = [], HostLane._new_slab
    monkeypatch.setattr(HostLane, "_new_slab", lambda self, n: taken.append(n) or new(self, n))
    left, right = noise((40, 8, 8)), noise((40, 8, 8), seed=1)
    over = {"shards": 4, "keep": keep, "materialize": materialize, "product": "A @ B"}
    made = factories.plan(tmp_path, left, right, **over)
    session = Session(made, 0)
    jobs, counts = [job.ShardJob(session, shard) for shard in made.shards], []
    for now, following in zip(jobs, [*jobs[1:], None], strict=True):

        def read(now=now, following=following):
            if materialize:
                now.release()
            if following is not None:
                following.begin()

        now.run(read)
        counts.append(len(taken))
    assert len(set(counts)) == 1
    other = factories.computed(factories.plan(tmp_path / "other", left, right, **over))
    for shard in made.shards:
        one, same = (m.results.product(shard).read_bytes() for m in (made, other))
        assert one == same
