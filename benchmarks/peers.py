"""The programs that ``shard_jobs.py`` compares; each runs in its own processes, one per GPU."""

import functools
import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import harness
import numpy as np

LARGE = 1024  # from this dimension on each matrix gets its own call
WRITERS, SLOTS = 4, 8
FEW = 8  # files that warm a script up
SHARDS = 2  # of each part


@dataclass(frozen=True)
class Task:
    """A row of the table, and the part of it that a process does."""

    dtype: str
    dim: int
    keep: str = "sum"
    where: str = "cached"
    product: str = "A @ A"
    backend: str = "cupy"
    file_bytes: int = 64 * harness.MIB  # what a script multiplies at once; at least a matrix
    peer: str = "Shardwise"
    over: dict[str, Any] = field(default_factory=dict)
    readers: int = 0
    files: tuple[str, ...] = ()  # each as often as it is read
    folder: str = ""
    part: int = 0
    parts: int = 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Matrices in one file, their rows and columns."""
        matrix = self.dim**2 * np.dtype(self.dtype).itemsize
        return max(1, self.file_bytes // matrix), self.dim, self.dim

    @property
    def nbytes(self) -> int:
        """Bytes of the matrices in one file."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


class Peer:
    """A program that does a task: ``run(files)`` returns the sum, or its first row, or None."""

    run: Callable[[tuple[str, ...]], Any]

    def __init__(self, task: Task) -> None:
        self.task, self.xp = task, harness.array_module(task.backend == "numpy")
        low, high = (len(task.files) * i // task.parts for i in (task.part, task.part + 1))
        self.files, self.sums = task.files[low:high], task.keep == "sum"
        self.offset = np.load(self.files[0], mmap_mode="r").offset
        self.result = Path(task.folder) / "result"

    def add(self, total: Any, block: Any, product: Any) -> None:
        """Multiply a stack, and add the products to ``total`` if no file keeps them."""
        left = block.swapaxes(1, 2) if self.task.product == "A.T @ A" else block
        if self.task.dim < LARGE and self.xp is not np:
            self.xp.matmul(left, block, out=product)
            if self.sums:
                total += product.sum(axis=0, dtype=total.dtype)
            return
        for own, other, out in zip(left, block, product, strict=True):
            self.xp.matmul(own, other, out=out)
            if self.sums:
                total += out


class Shardwise(Peer):
    """Ours, as in a worker of a pool: while a shard is computed, the next begins, the last ends."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        from shardwise.multiply.job import Session, ShardJob

        own = {"backend": task.backend, "keep": task.keep, "product": task.product, **task.over}
        own["shards"] = SHARDS * task.parts
        sheet = Path(task.folder) / "sheet.tsv"
        sheet.write_text("\n".join(["path", *task.files]))
        self.plan = harness.plan(sheet.parent, sheet, **own)
        self.rows = list(self.plan.shards.values())[task.part * SHARDS :][:SHARDS]
        self.session = Session(self.plan)
        ShardJob(self.session, self.rows[0].shard).run()

    def run(self, files: tuple[str, ...]) -> Any:
        """Take shard after shard to its receipt."""
        from shardwise.multiply.job import ShardJob

        with ThreadPoolExecutor(1) as ahead, ThreadPoolExecutor(1) as behind:
            begun = [ahead.submit(ShardJob(self.session, row.shard).begin) for row in self.rows]
            ended = []
            for job, then in itertools.zip_longest(begun, begun[1:]):
                job.result().compute(
                    lambda then=then: then.result() if then and then.done() else None
                )
                ended.append(behind.submit(job.result().finish))
            for end in ended:
                end.result()
        if not self.sums:
            return None
        nodes = [np.load(self.plan.results.product(row.name), mmap_mode="r") for row in self.rows]
        return sum(own[:, :1].sum(axis=0) for own in nodes)


class Script(Peer):
    """What a good user writes: threads read into pinned memory, copies and products overlap."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        import cupyx

        shape, xp, outs = task.shape, self.xp, 1 if self.sums else WRITERS
        self.free: SimpleQueue[Any] = SimpleQueue()
        for _ in range(task.readers + 4):
            self.free.put(cupyx.empty_pinned(shape, task.dtype))
        self.blocks = [xp.zeros(shape, task.dtype) for _ in range(2)]
        self.products = [xp.empty(shape, task.dtype) for _ in range(outs)]
        self.hosts = [cupyx.empty_pinned(shape, task.dtype) for _ in range(outs)]
        self.up, self.work = (xp.cuda.Stream(non_blocking=True) for _ in range(2))

    def run(self, files: tuple[str, ...]) -> Any:
        """Read and multiply; add the products or write them; fsync the file at the end."""
        full = SimpleQueue[Any]()

        def read(path: str) -> None:
            slab = self.free.get()
            with open(path, "rb", buffering=0) as file:
                got = os.preadv(file.fileno(), [memoryview(slab).cast("B")], self.offset)
            assert got == slab.nbytes, path
            full.put(slab)

        with (
            ThreadPoolExecutor(self.task.readers) as readers,
            ThreadPoolExecutor(WRITERS) as writers,
            open(self.result, "wb", buffering=0) as file,
        ):  # fmt: skip
            for path in files:
                readers.submit(read, path)
            total = self._multiply(full, len(files), writers, file.fileno())
            os.fsync(file.fileno())
        return total.get() if self.sums else None

    def _multiply(
        self, full: SimpleQueue[Any], count: int, writers: ThreadPoolExecutor, file: int
    ) -> Any:
        total = self.xp.zeros(self.task.shape[1:])
        self.xp.cuda.Device().synchronize()
        used, written = [self.work.record()] * 2, [None] * len(self.products)
        for i in range(count):
            slab, turn, out = full.get(), i % 2, i % len(self.products)
            self.up.wait_event(used[turn])
            self.blocks[turn].set(slab, stream=self.up)
            arrived = self.up.record()
            if written[out]:
                written[out].result()
            self.work.wait_event(arrived)
            with self.work:
                self.add(total, self.blocks[turn], self.products[out])
            used[turn] = self.work.record()
            if not self.sums:
                written[out] = writers.submit(self._write, file, i, out, used[turn])
            arrived.synchronize()
            self.free.put(slab)
        self.work.synchronize()
        for write in filter(None, written):
            write.result()
        return total

    def _write(self, file: int, i: int, out: int, done: Any) -> None:
        done.synchronize()
        self.products[out].get(out=self.hosts[out])
        wrote = os.pwrite(file, memoryview(self.hosts[out]).cast("B"), i * self.task.nbytes)
        assert wrote == self.task.nbytes


class Plain(Peer):
    """The loop that everybody writes first."""

    def run(self, files: tuple[str, ...]) -> Any:
        """Multiply one file after the other, through a memory map."""
        xp, total = self.xp, self.xp.zeros(self.task.shape[1:])
        with open(self.result, "wb") as file:
            for path in files:
                block = xp.asarray(np.load(path, mmap_mode="r"))
                product = xp.empty_like(block)
                self.add(total, block, product)
                if not self.sums:
                    file.write(memoryview(product if xp is np else product.get()).cast("B"))
            file.flush()
            os.fsync(file.fileno())
        return (total if xp is np else total.get()) if self.sums else None


class Raw(Peer):
    """Moves the same bytes by KvikIO to the device, and back if products are kept, and no more."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        import kvikio
        import kvikio.defaults

        kvikio.defaults.set({
            "num_threads": 16, "task_size": 8 * harness.MIB, "bounce_buffer_size": 8 * harness.MIB,
            "auto_direct_io_read": task.where == "cold", "auto_direct_io_write": True,
        })  # fmt: skip
        self.make, self.open = kvikio.CuFile, functools.cache(kvikio.CuFile)
        self.free: SimpleQueue[Any] = SimpleQueue()
        for _ in range(SLOTS):
            self.free.put(self.xp.zeros(task.nbytes, "u1"))

    def run(self, files: tuple[str, ...]) -> None:
        """Read all files, up to `SLOTS` at a time; products go into a new file with disk space."""
        nbytes = self.task.nbytes
        with open(self.result, "wb") as file, ThreadPoolExecutor(SLOTS) as threads:
            if not self.sums:
                os.posix_fallocate(file.fileno(), 0, len(files) * nbytes)
            result = self.make(str(self.result), "r+")

            def copy(i: int, path: str) -> None:
                slot = self.free.get()
                self.open(path, "r").read(slot, nbytes, self.offset)
                if not self.sums:
                    result.write(slot, nbytes, i * nbytes)
                self.free.put(slot)

            list(threads.map(copy, itertools.count(), files))
            os.fsync(file.fileno())


_begun: list[Peer] = []  # the peer of this process


def begin(task: Task, gpu: str) -> None:
    """Make the peer of this process on its own GPU, and warm it up."""
    Path(task.folder).mkdir(parents=True)
    os.environ.update(CUDA_VISIBLE_DEVICES=gpu, SHARDWISE_LEASES=f"{task.folder}/leases")
    _begun.append(globals()[task.peer](task))
    if task.peer != "Shardwise":  # which warmed itself up
        _begun[0].run(_begun[0].files[:FEW])


def turn() -> tuple[int, Any]:
    """Run the peer; return the bytes it read, and the sum's first row, or None."""
    peer = _begun[0]
    total = peer.run(peer.files)
    return len(peer.files) * peer.task.nbytes, None if total is None else total[0]
