"""What ``shard_jobs.py`` compares, each in processes of its own: python peers.py TASK (JSON).

A process says "ready" once its memory and kernels are there. For each line that it reads it does
its part of the work, and answers with the bytes of that, the processors' seconds, and the beginning
of its sum's first row.
"""

import functools
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import harness
import numpy as np

CHUNK_BYTES = 64 * harness.MIB  # what a script reads and multiplies at once, at least a matrix
LARGE = 1024  # from here on a matrix is multiplied by a call of its own
WRITERS, SLOTS = 4, 8
ANSWER = 8  # elements of the row by which sums are compared
FEW = 8  # chunks that warm a script up
PLAIN_CHUNKS = 128  # that the plain loop takes: its rate does not change any more


class Chunk(NamedTuple):
    """Matrices that lie side by side in a file."""

    path: str
    offset: int
    count: int


@dataclass(frozen=True)
class Task:
    """A part of a row's work; ``source`` is a stack, or a folder of matrices."""

    peer: str
    source: str
    folder: str
    dtype: str
    dim: int
    keep: str
    product: str
    backend: str
    part: int
    parts: int
    shards: int  # of each part
    passes: int
    over: dict[str, Any] = field(default_factory=dict)
    readers: int = 0

    @property
    def matrix_bytes(self) -> int:
        """Bytes of one matrix."""
        return self.dim**2 * np.dtype(self.dtype).itemsize

    def chunks(self, passes: int) -> list[Chunk]:
        """The matrices of a part, so many times; a few of them for no pass at all."""
        return self._once() * passes or self._once()[:FEW]

    def _once(self) -> list[Chunk]:
        if Path(self.source).is_dir():
            files = sorted(Path(self.source).glob("*.npy"))
            offset = np.load(files[0], mmap_mode="r").offset
            own = files[len(files) * self.part // self.parts :]
            return [Chunk(str(f), offset, 1) for f in own[: len(files) // self.parts]]
        stack, most = np.load(self.source, mmap_mode="r"), max(1, CHUNK_BYTES // self.matrix_bytes)
        low, high = (len(stack) * p // self.parts for p in (self.part, self.part + 1))
        return [
            Chunk(self.source, stack.offset + i * self.matrix_bytes, min(most, high - i))
            for i in range(low, high, most)
        ]


class Peer:
    """A program that does a task; making one takes memory and compiles."""

    def __init__(self, task: Task) -> None:
        self.task, self.xp = task, harness.array_module(task.backend == "numpy")
        self.shape = (task.dim, task.dim)

    def run(self, passes: int) -> tuple[int, np.ndarray | None]:
        """Do it; the number of matrices, and the first row of the sum of one pass, if any."""
        raise NotImplementedError

    def add(self, total: Any, block: Any, product: Any) -> None:
        """Multiply a stack, and add the products up where no file keeps them."""
        left = block.swapaxes(1, 2) if self.task.product == "A.T @ A" else block
        if self.task.dim < LARGE and self.xp is not np:
            self.xp.matmul(left, block, out=product)
            if self.task.keep == "sum":
                total += product.sum(axis=0, dtype=total.dtype)
            return
        for own, other, out in zip(left, block, product, strict=True):
            self.xp.matmul(own, other, out=out)
            if self.task.keep == "sum":
                total += out


class Shardwise(Peer):
    """Ours, as a worker of a pool has it: the next shard begins, the last one ends meanwhile."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        from shardwise.multiply.job import ShardJob, warm
        from shardwise.multiply.session import Session
        from shardwise.plan import plan as plans

        own = {"backend": task.backend, "keep": task.keep, "product": task.product, **task.over}
        own["shards"] = task.shards * task.parts
        self.plan = plans.load(harness.write_plan(Path(task.folder), Path(task.source), **own))
        self.mine = list(self.plan.shards)[task.part * task.shards :][: task.shards]
        self.session, self.job = Session(self.plan), ShardJob
        warm(self.session)

    def run(self, passes: int) -> tuple[int, np.ndarray | None]:
        """Take shard after shard to its receipt."""
        names, ended = iter(self.mine * passes), None
        with ThreadPoolExecutor(1) as ahead, ThreadPoolExecutor(1) as behind:

            def begin() -> Future[Any] | None:
                name = next(names, None)
                return name and ahead.submit(lambda: self.job(self.session, name).begin())

            def coming() -> Any:
                return following.result() if following and following.done() else None

            following = begin()
            while following:
                job, following = following.result(), begin()
                job.compute(coming)
                if ended:
                    ended.result()
                ended = behind.submit(job.finish)
        if not passes:
            return 0, None
        rows = [self.plan.shards[shard] for shard in self.mine]
        files = [np.load(self.plan.results.product(row.name), mmap_mode="r") for row in rows]
        count = passes * sum(len(row.run) for row in rows)
        return count, sum(f[:, 0].sum(axis=0) for f in files) if self.task.keep == "sum" else None


class Script(Peer):
    """What a good user writes: threads read into pinned memory, copies and products overlap.

    No checksum, no proof, no receipt.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        import cupyx

        count, xp = max(1, CHUNK_BYTES // task.matrix_bytes), self.xp
        shape = (count, *self.shape)
        self.free: SimpleQueue[Any] = SimpleQueue()
        for _ in range(task.readers + 4):
            self.free.put(cupyx.empty_pinned(shape, task.dtype))
        self.blocks = [xp.zeros(shape, task.dtype) for _ in range(2)]
        outs = WRITERS if task.keep == "products" else 1
        self.products = [xp.empty(shape, task.dtype) for _ in range(outs)]
        self.hosts = [cupyx.empty_pinned(shape, task.dtype) for _ in range(outs)]
        self.up, self.work = (xp.cuda.Stream(non_blocking=True) for _ in range(2))

    def run(self, passes: int) -> tuple[int, np.ndarray | None]:
        """Read, multiply and add; or write, and flush the file to the disk at the end."""
        chunks, full = self.task.chunks(passes), SimpleQueue[Any]()
        todo, lock = iter(chunks), threading.Lock()

        def read() -> None:
            while True:
                with lock:
                    chunk = next(todo, None)
                if chunk is None:
                    return
                slab = self.free.get()
                fill(chunk, slab[: chunk.count])
                full.put((slab, chunk.count))

        for _ in range(self.task.readers):
            threading.Thread(target=read, daemon=True).start()
        with ThreadPoolExecutor(WRITERS) as writers:
            total = self._multiply(full, len(chunks), writers)
        row = None if self.task.keep == "products" else total.get()[0] / max(1, passes)
        return sum(chunk.count for chunk in chunks), row

    def _multiply(self, full: SimpleQueue[Any], count: int, writers: ThreadPoolExecutor) -> Any:
        total = self.xp.zeros(self.shape)
        self.xp.cuda.Device().synchronize()
        used, written = [self.work.record()] * 2, [None] * len(self.products)
        with open(Path(self.task.folder) / "result", "wb", buffering=0) as file:
            at = 0
            for i in range(count):
                (slab, n), turn, out = full.get(), i % 2, i % len(self.products)
                self.up.wait_event(used[turn])
                self.blocks[turn][:n].set(slab[:n], stream=self.up)
                arrived = self.up.record()
                if written[out]:
                    written[out].result()
                self.work.wait_event(arrived)
                with self.work:
                    self.add(total, self.blocks[turn][:n], self.products[out][:n])
                used[turn] = self.work.record()
                if self.task.keep == "products":
                    written[out] = writers.submit(self._write, file, at, out, n, used[turn])
                    at += n * self.task.matrix_bytes
                arrived.synchronize()
                self.free.put(slab)
            self.work.synchronize()
            for write in filter(None, written):
                write.result()
            os.fsync(file.fileno())
        return total

    def _write(self, file: Any, at: int, out: int, count: int, done: Any) -> None:
        done.synchronize()
        self.products[out][:count].get(out=self.hosts[out][:count])
        raw = memoryview(self.hosts[out][:count]).cast("B")
        while raw:
            wrote = os.pwrite(file.fileno(), raw, at)
            raw, at = raw[wrote:], at + wrote


class Plain(Peer):
    """The loop that everybody writes first."""

    def run(self, passes: int) -> tuple[int, np.ndarray | None]:
        """Multiply one chunk after the other, by way of a memory map."""
        xp, total, chunks = self.xp, self.xp.zeros(self.shape), self.task.chunks(passes)
        whole = xp is np or self.task.keep == "products" or len(chunks) <= PLAIN_CHUNKS
        chunks = chunks if whole else chunks[:PLAIN_CHUNKS]
        with open(Path(self.task.folder) / "result", "wb") as file:
            for path, offset, count in chunks:
                shape = (count, *self.shape)
                block = xp.asarray(np.memmap(path, self.task.dtype, "r", offset, shape))
                product = xp.empty_like(block)
                self.add(total, block, product)
                if self.task.keep == "products":
                    file.write(memoryview(product if xp is np else product.get()).cast("B"))
            file.flush()
            os.fsync(file.fileno())
        row = (total if xp is np else total.get())[0] / max(1, passes)
        known = self.task.keep == "sum" and whole
        return sum(chunk.count for chunk in chunks), row if known else None


class Raw(Peer):
    """The same bytes from file to device by KvikIO, and where products are kept back; no more."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        import kvikio
        import kvikio.defaults

        cold = bool(task.over.get("cold"))
        kvikio.defaults.set({
            "num_threads": 16, "task_size": 8 * harness.MIB, "bounce_buffer_size": 8 * harness.MIB,
            "auto_direct_io_read": cold, "auto_direct_io_write": True,
        })  # fmt: skip
        self.open = kvikio.CuFile
        size = max(1, CHUNK_BYTES // task.matrix_bytes) * task.matrix_bytes
        self.ring = [self.xp.zeros(size, "u1") for _ in range(SLOTS)]

    def run(self, passes: int) -> tuple[int, np.ndarray | None]:
        """Read all, with some reads, and some writes, under way at any time."""
        opened = functools.cache(lambda path: self.open(path, "r"))
        chunks, behind = self.task.chunks(passes), SLOTS // 2
        reads, writes, at = deque[Any](), deque[Any](), 0
        path = Path(self.task.folder) / "result"
        result = self.open(str(path), "w")
        for i, chunk in enumerate([*chunks, *[None] * behind]):
            if i >= behind:
                read, slot, nbytes = reads.popleft()
                read.get()
                keep = self.task.keep == "products"
                writes.append(result.pwrite(slot, nbytes, at) if keep else None)
                at += nbytes
            if chunk is not None:
                if write := writes.popleft() if i >= SLOTS else None:
                    write.get()
                slot, nbytes = self.ring[i % SLOTS], chunk.count * self.task.matrix_bytes
                reads.append((opened(chunk.path).pread(slot, nbytes, chunk.offset), slot, nbytes))
        for write in filter(None, writes):
            write.get()
        result.close()
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        return sum(chunk.count for chunk in chunks), None


def fill(chunk: Chunk, block: np.ndarray) -> None:
    """Read a chunk of a file."""
    with open(chunk.path, "rb", buffering=0) as file:
        got = os.preadv(file.fileno(), [memoryview(block).cast("B")], chunk.offset)
    if got != block.nbytes:
        raise OSError(f"{chunk.path}: read {got} bytes of {block.nbytes}")


PEERS: dict[str, Callable[[Task], Peer]] = {
    "shardwise": Shardwise, "script": Script, "plain loop": Plain, "raw": Raw,
}  # fmt: skip


def answers(task: Task) -> Iterator[str]:
    """What the process says."""
    peer = PEERS[task.peer](task)
    peer.run(0)
    yield "ready"
    for _ in sys.stdin:
        began = time.process_time()
        count, row = peer.run(task.passes)
        cpu = time.process_time() - began
        first = None if row is None else row[:ANSWER].tolist()
        yield json.dumps([count * task.matrix_bytes, cpu, first])


if __name__ == "__main__":
    for answer in answers(Task(**json.loads(sys.argv[1]))):
        harness.say(answer)
