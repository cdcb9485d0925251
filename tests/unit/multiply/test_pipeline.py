"""The pipeline: bytes arrive in order, whatever the slabs; what fails leaves nothing behind."""

import threading
from collections import deque
from contextlib import closing
from itertools import pairwise
from queue import SimpleQueue

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.errors import InputError
from shardwise.files import commit as commits
from shardwise.files import pieces as piecess
from shardwise.files.checksum import PieceChecksum, file_checksum
from shardwise.files.commit import commit
from shardwise.files.direct import ExtentReader
from shardwise.files.npy import StackWriter
from shardwise.multiply import batch, job, operation
from shardwise.multiply.lanes import HostLane
from shardwise.multiply.pipeline import Drain, Feed
from shardwise.multiply.session import Session
from shardwise.plan import memory as plan_memory
from shardwise.plan.plan import Source
from shardwise.plan.stack import StackReader
from shardwise.records.timeline import Stopwatch

from tests import factories
from tests.factories import copied, leftovers, noise, save, stack


class LateLane(HostLane):
    """Copies as in a stream of a device: made in order, and only once a mark is waited for."""

    def __init__(self):
        super().__init__()
        self._ahead, self._made = deque(), 0

    def _copied(self, views, target):
        with self._lock:
            self._ahead.append((views, target))
            return LateMark(self, self._made + len(self._ahead))

    def catch_up(self, number):
        """Make the copies up to one of them."""
        with self._lock:
            while self._made < number:
                super()._copied(*self._ahead.popleft())
                self._made += 1

    def finish(self):
        """Make all copies."""
        self.catch_up(self._made + len(self._ahead))


class LateMark:
    """A point in the stream."""

    def __init__(self, lane, number):
        self._lane, self._number = lane, number

    def wait(self):
        """Wait until the stream has come here."""
        self._lane.catch_up(self._number)
        return 1.0, 1.25


class BrokenError(Exception):
    """Something that nobody expected."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A stack of 37 matrices of 60 bytes over three files, and its bytes."""
    folder, parts, arrays_ = tmp_path_factory.mktemp("files"), [], []
    for number, count in enumerate((20, 1, 16)):
        array = stack((count, 3, 5), "float32", number)
        path = save(folder / f"{number}.npy", np.asarray(array, order="CFC"[number]))
        parts.append(Source(str(path), sum(map(len, arrays_)), count, ""))
        arrays_.append(array)
    return parts, np.concatenate(arrays_).reshape(-1).view(np.uint8)


def fed(lane, parts, run, slab_bytes, slabs, cuts, witness=None):
    """Batches of these lengths, filled one after the other; the checksum, and the stopwatch."""
    checksum = PieceChecksum(run[1] - run[0], 60, 25)
    watch, reader = Stopwatch(), StackReader(parts, (3, 5), "float32")
    targets = [np.full(n, 7, np.uint8) for n in cuts]
    with (
        ExtentReader() as threads,
        closing(
            Feed(lane, reader, threads, run, slab_bytes, slabs, checksum, witness, watch)
        ) as feed,
    ):
        feed.start()
        for target in targets:
            feed.fill(target)
        if witness:
            witness.all_handed_on.set()
        feed.settle()
    return targets, checksum, watch


@given(st.data(), st.integers(1, 700), st.integers(1, 5))
def test_bytes_are_fed_in_order(files, data, slab_bytes, slabs):
    """Any run, in slabs of any size and number, into batches of any size; each byte once."""
    parts, whole = files
    low = data.draw(st.integers(0, whole.nbytes - 1))
    high = data.draw(st.integers(low + 1, whole.nbytes))
    marks = data.draw(st.lists(st.integers(0, high - low), max_size=4))
    edges = [0, *sorted(marks), high - low]
    cuts = [b - a for a, b in pairwise(edges)]
    targets, checksum, watch = fed(HostLane(), parts, (low, high), slab_bytes, slabs, cuts)
    np.testing.assert_array_equal(np.concatenate(targets), whole[low:high])
    expected = PieceChecksum(high - low, 60, 25)
    expected.append(memoryview(whole[low:high]))
    assert checksum.hexdigest() == expected.hexdigest()
    assert {"read", "checksum", "waited_for_reads"} <= set(watch.seconds)


@given(st.integers(1, 500), st.integers(1, 3))  # 5 slabs of bytes or more, so some are used twice
def test_a_slab_is_not_read_into_while_it_is_copied_from(files, slab_bytes, slabs):
    """Its memory is used again only after the mark of its last copy was waited for."""
    parts, whole = files
    lane = LateLane()
    targets, _, watch = fed(lane, parts, (0, whole.nbytes), slab_bytes, slabs, [1000, 1220])
    lane.finish()
    np.testing.assert_array_equal(np.concatenate(targets), whole)
    assert watch.seconds["upload"] > 0


class LateWitness:
    """Looks at bytes once all were handed on, those of the first piece that it sees."""

    def __init__(self, fails_at=None):
        self.all_handed_on, self.seen = threading.Event(), {}
        self._fails_at = fails_at
        if fails_at is not None:
            self.all_handed_on.set()

    def update(self, offset, views):
        """Take the bytes of a piece."""
        if offset == self._fails_at:
            raise BrokenError
        if not offset:
            assert self.all_handed_on.wait(60)
        self.seen[offset] = b"".join(view.tobytes() for view in views)


@given(st.integers(1, 500), st.integers(2, 4))
def test_a_slow_witness_holds_up_neither_the_device_nor_other_slabs(files, slab_bytes, slabs):
    """Pieces go on before they are witnessed, and are there until they were."""
    (parts, whole), witness = files, LateWitness()
    fed(HostLane(), parts, (0, whole.nbytes), slab_bytes, slabs, [whole.nbytes], witness)
    assert b"".join(part for _, part in sorted(witness.seen.items())) == whole.tobytes()


class CountedLane(HostLane):
    """Knows how many of its slabs are out."""

    out = 0

    def slab(self, nbytes):
        """One more."""
        self.out += 1
        return super().slab(nbytes)

    def keep(self, slab):
        """One fewer."""
        super().keep(slab)
        self.out -= 1


@pytest.mark.parametrize("slabs", [1, 3])
@pytest.mark.parametrize("piece", [0, 4, 22])
def test_a_witness_that_fails_is_heard_of(files, slabs, piece):
    """With the next bytes, or at the end at the latest; no thread and no slab is left out."""
    (parts, whole), lane, before = files, CountedLane(), set(threading.enumerate())
    with pytest.raises(BrokenError):
        fed(
            lane, parts, (0, whole.nbytes), 100, slabs, [whole.nbytes // 20] * 20,
            LateWitness(fails_at=100 * piece),
        )  # fmt: skip
    assert set(threading.enumerate()) <= before
    assert lane.out == 0


@pytest.mark.parametrize("taken", [0, 60, 500])
def test_bytes_that_nobody_wants_any_more_leave_no_slab_out(files, taken):
    """Wherever its shard is given up, and whether or not it was begun."""
    (parts, _), lane, before = files, CountedLane(), set(threading.enumerate())
    checksum = PieceChecksum(1500, 60, 25)
    with ExtentReader() as threads:
        reader = StackReader(parts, (3, 5), "float32")
        feed = Feed(lane, reader, threads, (0, 1500), 100, 4, checksum, None, Stopwatch())
        with closing(feed):
            feed.start()
            feed.fill(np.zeros(taken, np.uint8))
    assert set(threading.enumerate()) <= before
    assert lane.out == 0


def drained(lane, path, raw, slab_bytes, slabs, cuts):
    """A file of these bytes, written in parts of these lengths; checksum, pieces, stopwatch."""
    watch, at = Stopwatch(), 0
    with commit(path) as file:
        with StackWriter(file, (raw.nbytes,), np.dtype("u1")) as writer:
            free = SimpleQueue()
            for _ in range(slabs):
                free.put(lane.slab(slab_bytes)[:slab_bytes])
            with closing(Drain(lane, writer, free, watch)) as drain:
                for length in cuts:
                    source = raw[at : at + length].copy()
                    drain.write(source)
                    source[:] = 7  # it may be overwritten now
                    at += length
                drain.finish()
        assert free.qsize() == slabs
        return writer.checksum(), (writer.row_bytes, writer.piece_bytes), watch


@given(st.data(), st.integers(1, 3000), st.integers(1, 700), st.integers(1, 5))
def test_bytes_are_drained_in_order(tmp_path, data, total, slab_bytes, slabs):
    """Batches of any size into a file by slabs of any size and number; each byte once."""
    raw = np.random.default_rng(total).integers(0, 256, total, "uint8")
    marks = data.draw(st.lists(st.integers(0, total), max_size=4))
    edges = [0, *sorted(marks), total]
    cuts = [b - a for a, b in pairwise(edges)]
    lane = data.draw(st.sampled_from([HostLane, LateLane]))()
    path = tmp_path / "a.npy"
    checksum, pieces, watch = drained(lane, path, raw, slab_bytes, slabs, cuts)
    np.testing.assert_array_equal(np.load(path), raw)
    assert checksum == file_checksum(path, 4096, *pieces)
    assert {"write", "download"} <= set(watch.seconds)


# Whole shards that fail.


FAILURES = {
    "reading": (StackReader, "read_bytes"),
    "hashing what is read": (PieceChecksum, "update"),
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
ONCE = ("the end", "rename")  # what is done once, at the end


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


@pytest.mark.parametrize("call", [1, 5])
@pytest.mark.parametrize("where", FAILURES)
def test_a_failure_anywhere_ends_the_shard(tmp_path, monkeypatch, where, call):
    """It ends with that very error, before the other batches; no file and no thread is left."""
    matrix = 8 * 8 * 8
    monkeypatch.setattr(piecess, "SLAB_BYTES", 3 * matrix + 40)
    monkeypatch.setattr(plan_memory, "HOST_BATCH_BYTES", 2 * matrix)
    made = copied(factories.plan(tmp_path, noise((400, 8, 8)), shards=1))
    error = BrokenError(where)
    before = set(threading.enumerate())
    with monkeypatch.context() as patch:
        worked = fail(patch, where, error, 1 if where in ONCE else call)
        with pytest.raises(BrokenError) as caught:
            job.run_shard(made, "00000")
    assert caught.value is error
    assert set(threading.enumerate()) <= before
    assert not leftovers(tmp_path)
    assert not made.results.product("00000").exists()
    assert not made.results.receipt("00000").exists()
    # A failed write is noticed when its slab is used again: all of them may be filled before.
    assert where in ONCE or len(worked) < 40
    if call == 1:  # nothing of it is in the way of the next attempt
        job.run_shard(made, "00000")
        assert made.results.receipt("00000").exists()


def test_few_slabs_change_no_byte(tmp_path, monkeypatch):
    """With the least memory the pipeline runs in two slabs each way, to the same bits."""
    monkeypatch.setattr(piecess, "SLAB_BYTES", 1000)
    seen, taken = set(), []
    new = HostLane._new_slab
    monkeypatch.setattr(HostLane, "_new_slab", lambda self, n: taken.append(n) or new(self, n))
    made = copied(factories.plan(tmp_path, noise((40, 8, 8)), shards=1))
    taken.clear()
    counts = []
    for memory in (None, 1):
        job.run_shard(made, "00000", memory)
        seen.add(factories.products(made).tobytes())
        counts.append(len(taken))
        taken.clear()
    assert len(seen) == 1
    assert counts == [
        plan_memory.READ_SLABS + plan_memory.WRITE_SLABS,
        2 * plan_memory.FEWEST_SLABS,
    ]


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


@pytest.mark.parametrize("keep", ["products", "sum"])
def test_a_session_takes_its_slabs_once(tmp_path, monkeypatch, keep):
    """Shards that follow each other, the next read while one is computed, share their slabs."""
    monkeypatch.setattr(piecess, "SLAB_BYTES", 1000)
    taken, new = [], HostLane._new_slab
    monkeypatch.setattr(HostLane, "_new_slab", lambda self, n: taken.append(n) or new(self, n))
    left, right = noise((40, 8, 8)), noise((40, 8, 8), seed=1)
    over = {"shards": 4, "keep": keep, "materialize": True, "product": "A @ B"}
    made = factories.plan(tmp_path, left, right, **over)
    session = Session(made, 0)
    jobs, counts = [job.ShardJob(session, shard) for shard in made.shards], []
    for now, following in zip(jobs, [*jobs[1:], None], strict=True):

        def read(now=now, following=following):
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


def test_a_session_goes_on_after_a_failure(tmp_path):
    """A shard with NaN fails; the ones before and after it have the right products."""
    left = stack((12, 4, 4), "float64")
    left[5, 1, 2] = np.nan
    made = factories.plan(tmp_path, left, shards=4, materialize=False)
    session = Session(made, 0)
    for shard in made.shards:
        shard_job = job.ShardJob(session, shard)
        if shard == "00001":
            with pytest.raises(InputError, match="matrix 5 holds NaN"):
                shard_job.run()
        else:
            shard_job.run()
            row = made.shard(shard)
            part = left[row.start : row.stop]
            np.testing.assert_array_equal(np.load(made.results.product(shard)), part @ part)
    assert not made.results.receipt("00001").exists()
    assert factories.leftovers(tmp_path) == []
