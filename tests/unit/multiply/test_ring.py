"""The ring: bytes arrive in order, whatever the slots; what fails leaves nothing behind."""

import errno
import os
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.errors import DeviceFailed
from shardwise.files import commit as commits
from shardwise.files import pieces
from shardwise.files.checksum import PieceChecksum
from shardwise.files.npy import StackWriter
from shardwise.multiply import job, operation, ring
from shardwise.multiply.cuda import Cuda, Transfer
from shardwise.multiply.host import Host
from shardwise.plan import memory as plan_memory
from shardwise.plan.stack import StackReader
from shardwise.records import receipts
from shardwise.records.store import Store

from tests import factories
from tests.factories import REFERENCES, leftovers, noise, partials, save, stack


class CuFile:
    """A stand-in for a file of KvikIO: threads read and write late."""

    pool, random = ThreadPoolExecutor(4), Random(0)

    def __init__(self, path, flags):
        self._number = os.open(path, {"r": os.O_RDONLY, "r+": os.O_RDWR}[flags])

    def __del__(self):
        """Close it, as KvikIO does."""
        os.close(self._number)

    def fileno(self):
        return self._number

    def pread(self, raw, nbytes, offset):
        return self._later(os.preadv, [memoryview(raw)[:nbytes]], offset)

    def pwrite(self, raw, nbytes, offset):
        return self._later(os.pwrite, memoryview(raw)[:nbytes], offset)

    def _later(self, call, raw, offset):
        def transfer():
            time.sleep(0.002 * self.random.random())
            call(self._number, raw, offset)

        return SimpleNamespace(get=self.pool.submit(transfer).result)


class Device(Cuda):
    """A stand-in for a GPU on NumPy, which reads and writes as late as a device may.

    Batches are queued before anything is done for the first of them, and the bytes in a slot are
    hashed when its turn comes.
    """

    settle, mark, work, proof, fetch = Host.settle, Host.mark, Host.work, Host.proof, Host.fetch
    total, way = Host.total, Host.way

    def __init__(self):
        self.xp, self._thread = np, ThreadPoolExecutor(1)
        self._kvikio = SimpleNamespace(CuFile=CuFile, defaults=SimpleNamespace(set=dict))

    def _convert(self, factor, offset, target):
        factor.convert(offset, target)

    def hashing(self, checksum):
        """The checksum that hashes go to; there is nothing to finish."""
        return SimpleNamespace(checksum=checksum, finish=lambda: None)

    def hash(self, digest, offset, raw, products=False):
        """Leave all bytes for the host to hash, once their batch is examined."""
        return [(digest.checksum, offset, raw)]


@given(
    data=st.data(),
    sizes=st.tuples(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 5)),
    machine=st.sampled_from([Host, Device]),
    keep=st.sampled_from(["products", "sum"]),
    way=st.sampled_from(["A @ B", "A.T @ A"]),
    shared=st.booleans(),
    weigh=st.booleans(),
)
def test_every_byte_comes_in_order(
    tmp_path_factory, data, sizes, machine, keep, way, shared, weigh
):
    """Any parts, batches and slots of any size: each byte once, from several files."""
    folder, (part, batch, slots) = tmp_path_factory.mktemp("a"), sizes
    left = stack((data.draw(st.integers(1, 37)), 3, 4), "float32")
    each = st.lists(st.integers(-2, 2), min_size=len(left), max_size=len(left))
    weights = np.array(data.draw(each)) if weigh else np.ones(len(left), "int64")
    given = np.where(weights[:, None, None] == 0, np.float32("nan"), left)
    for i, matrix in enumerate(given):
        save(folder / "in" / f"{i:02}.npy", np.asarray(matrix, order="CF"[i % 2]))
    shape = (4, 11) if shared else (len(left), 4, 11)
    right = stack(shape, "float32", 1) if way == "A @ B" else None
    over = {"input": str(folder / "in"), "materialize": False, "product": way, "keep": keep}
    if weigh:
        over["weights"] = str(save(folder / "w.npy", weights))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PART_BYTES", part)
        patch.setattr(plan_memory, "HOST_BATCH_BYTES", batch)
        patch.setattr(plan_memory.Budget, "slots", lambda *_: slots)
        patch.setattr(job, "Host", machine)
        made = factories.plan(folder, right=right, shards=min(3, len(left)), **over)
        own = job.Session(made)
        jobs = [job.ShardJob(own, shard).begin() for shard in made.shards]
        for one, following in zip(jobs, [*jobs[1:], None], strict=True):
            one.compute(lambda following=following: following)
        for one in jobs:
            one.finish()
    expected, each = REFERENCES[way](left, right), weights[:, None, None]
    if keep == "products":
        np.testing.assert_array_equal(factories.products(made), np.where(each == 0, 0, expected))
    else:
        np.testing.assert_array_equal(partials(made).sum(axis=0), (each * expected).sum(axis=0))
    for shard in made.shards:
        receipt, row = factories.receipt(made, shard), made.shard(shard)
        receipts.check_elements(factories.file(made, "product", shard), receipt.file)
        read = slice(row.start, row.stop)
        assert receipt.input_checksum == checksum_of(given[read])
        if way == "A @ B":
            assert receipt.right_checksum == checksum_of(right if shared else right[read])


def checksum_of(block):
    """The checksum of a block that a task reads."""
    whole = PieceChecksum(block.nbytes, *plan_memory.SHARD_PIECES)
    whole.update(0, np.ascontiguousarray(block).reshape(-1).view("u1"))
    return whole.hexdigest()


STEPS = [
    (job, "note_start"), (ring.Ring, "_finish_sum"), (commits, "_rename"), (Store, "publish"),
    (StackReader, "extents"), (StackReader, "read_into"), (PieceChecksum, "update"), (Host, "fill"),
    (operation.Multiplication, "run"), (Host, "fetch"), (operation.Operation, "examine"),
    (Host, "write"), (StackWriter, "write_at"),
]  # fmt: skip


@pytest.mark.parametrize("call", [1, 3])
@pytest.mark.parametrize(("owner", "name"), STEPS)
def test_a_failure_anywhere_ends_one_shard_and_no_other(tmp_path, monkeypatch, owner, name, call):
    """Although others have begun. It ends with that very error, and leaves no file."""
    monkeypatch.setattr(pieces, "PART_BYTES", 3 * 512 + 40)  # a matrix has 512
    monkeypatch.setattr(plan_memory, "HOST_BATCH_BYTES", 2 * 512)
    left, calls = noise((120, 8, 8)), []
    made = factories.plan(tmp_path, left, shards=3, materialize=False)
    session, error, failed = job.Session(made), ArithmeticError(name), []
    original = getattr(owner, name)

    def broken(*arguments, **named):
        calls.append(None)
        if len(calls) == call:
            raise error
        return original(*arguments, **named)

    def attempt(each, act, *words):
        try:
            if not any(each is one for one, _ in failed):
                act(*words)
        except ArithmeticError as caught:
            failed.append((each, caught))

    jobs = [job.ShardJob(session, shard) for shard in made.shards]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, broken)
        for each in jobs:
            attempt(each, each.begin)
        for each, following in zip(jobs, [*jobs[1:], None], strict=True):
            attempt(each, each.compute, lambda following=following: following)
        for each in jobs:
            attempt(each, each.finish)
    ((bad, caught),) = failed
    assert caught is error
    one = bad.shard.shard
    assert not factories.file(made, "receipt", one).exists()
    assert factories.file(made, "product", one).exists() == (name == "publish")
    assert Store(made).missing() == [one]
    job.ShardJob(session, one).run()
    assert not leftovers(tmp_path)
    np.testing.assert_array_equal(factories.products(made), factories.multiplied(made, left))


@pytest.mark.parametrize(("words", "kind"), [
    ("CUDA error 700", DeviceFailed), (os.strerror(errno.ENOSPC), OSError), ("EOF", OSError),
])  # fmt: skip
def test_what_kvikio_says_becomes_an_error_of_ours(words, kind):
    """A device that is lost, a disk that is full, or fails."""
    failing = SimpleNamespace(get=Mock(side_effect=RuntimeError(words)))
    transfer = Transfer(failing, None, None, "a")
    for _ in range(2):  # each caller gets the error
        with pytest.raises(kind) as caught:
            transfer.result()
    full = errno.ENOSPC if "space" in words else errno.EIO
    assert getattr(caught.value, "errno", full) == full
