"""The programs that ``shard_jobs.py`` compares, each in a process of its own.

Every peer takes the same ``.npy`` stack from its file to a result that is flushed to the disk. A
peer that dies, hangs or cannot be imported costs its own cells only.
"""

import multiprocessing
import os
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import harness
import numpy as np
import transfers

SLAB_BYTES = 128 * harness.MIB  # of the peers that work on several matrices at once
LARGE = 1024  # from here on CuPy is faster with a call for each matrix
START_SECONDS = 60.0
JOB_SECONDS = 60.0
DEATHS = 2  # a peer that died or hung as often is not started again


@dataclass(frozen=True)
class Job:
    """One stack to multiply: ``A @ A`` of every matrix."""

    stack: str
    folder: str
    dtype: str
    dim: int
    matrices: int
    keep: str
    cached: bool
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def matrix_bytes(self) -> int:
        """Bytes of one matrix."""
        return self.dim**2 * np.dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the elements of the stack."""
        return self.matrices * self.matrix_bytes

    @property
    def output(self) -> Path:
        """Where a peer that is told so writes its result."""
        return Path(self.folder) / "result.npy"

    def slabs(self) -> list[tuple[int, int]]:
        """Runs of matrices of :data:`SLAB_BYTES`, at least one in each."""
        step = max(1, SLAB_BYTES // self.matrix_bytes)
        return [(i, min(i + step, self.matrices)) for i in range(0, self.matrices, step)]


def npy_header(shape: tuple[int, ...], dtype: str) -> bytes:
    """A header of one page, so that the elements can be written directly."""
    fields = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
    text = repr(fields).ljust(transfers.PAGE - 11) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


@contextmanager
def products_file(job: Job) -> Iterator[int]:
    """The file for all products, header written; flushed to the disk in the end."""
    fd = os.open(job.output, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.pwrite(fd, npy_header((job.matrices, job.dim, job.dim), job.dtype), 0)
        yield fd
        os.fsync(fd)
    finally:
        os.close(fd)


def write_sum(job: Job, total: np.ndarray) -> None:
    """Write the sum, flushed to the disk."""
    with open(job.output, "wb") as file:
        np.save(file, total)
        file.flush()
        os.fsync(file.fileno())


def read_fully(fd: int, view: memoryview, offset: int) -> None:
    """Read exactly what a view takes."""
    done = 0
    while done < len(view):
        got = os.preadv(fd, [view[done:]], offset + done)
        if not got:
            raise OSError("the stack is too short")
        done += got


def write_fully(fd: int, view: memoryview, offset: int) -> None:
    """Write all of a view."""
    done = 0
    while done < len(view):
        done += os.pwrite(fd, view[done:], offset + done)


def bytes_of(array: np.ndarray) -> memoryview:
    """The bytes of a contiguous array."""
    return memoryview(array.reshape(-1).view(np.uint8))


class Peer:
    """A program; making one imports what it needs and opens the device."""

    def prepare(self, job: Job) -> None:
        """What the clock does not count."""

    def run(self, job: Job) -> dict[str, Any]:
        """Take a stack to its result on the disk; where that is, if not in ``job.output``."""
        raise NotImplementedError


class Raw(Peer):
    """The same bytes moved by threads, nothing computed: the ceiling of the disk or page cache."""

    def __init__(self, tiny: bool) -> None:
        self._xp = harness.array_module(tiny)
        self._memory = transfers.ring(self._xp, tiny)

    def run(self, job: Job) -> dict[str, Any]:
        """Read, and write as much where products are kept; the best of few and of many threads."""
        tries = []
        for threads in (transfers.THREADS,) if job.cached else (4, transfers.THREADS):
            if not job.cached:
                transfers.evict(Path(job.stack))
            read = (Path(job.stack), self._memory, not job.cached, threads)
            write = (Path(job.stack), job.output, job.nbytes, *read[1:])
            tries.append(
                transfers.read(*read) if job.keep == "sum" else transfers.read_and_write(*write)
            )
        return {"seconds": min(tries)}

    def device(self, dims: dict[str, int]) -> dict[str, float]:
        """Bytes per second over PCIe, and operations per second by dtype; nothing on NumPy."""
        if self._xp is np:
            return {}
        found = {"PCIe": transfers.pcie(self._xp, True, False)}
        found["PCIe both ways"] = transfers.pcie(self._xp, True, True)
        return found | {f"GEMM {t}": transfers.gemm(self._xp, t, d) for t, d in dims.items()}


class Plain(Peer):
    """The loop that everybody writes first: one matrix up, multiplied, and down again."""

    def __init__(self, tiny: bool) -> None:
        self._xp = harness.array_module(tiny)

    def run(self, job: Job) -> dict[str, Any]:
        """Multiply all; sums are added on the device in float64."""
        xp = self._xp
        to_host = np.asarray if xp is np else xp.asnumpy
        stack = np.load(job.stack, mmap_mode="r")
        if job.keep == "sum":
            total = xp.zeros(stack.shape[1:], "float64")
            for matrix in stack:
                a = xp.asarray(matrix)
                total += a @ a
            write_sum(job, to_host(total))
            return {}
        out = np.lib.format.open_memmap(job.output, "w+", stack.dtype, stack.shape)
        for i, matrix in enumerate(stack):
            a = xp.asarray(matrix)
            out[i] = to_host(a @ a)
        out.flush()
        with open(job.output, "rb") as file:
            os.fsync(file.fileno())
        return {}


class Torch(Peer):
    """Two pinned slabs in turn, copies that do not block, two streams, two threads for files."""

    def __init__(self, tiny: bool) -> None:
        if tiny:
            raise RuntimeError("needs a GPU")
        import torch

        self._torch = torch
        torch.set_float32_matmul_precision("highest")
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()

    def run(self, job: Job) -> dict[str, Any]:
        """Multiply slab by slab with ``torch.bmm``; sums are added in float64."""
        torch, slabs = self._torch, job.slabs()
        kept = job.keep == "products"
        shape, dtype = (slabs[0][1], job.dim, job.dim), getattr(torch, job.dtype)
        fronts = [torch.empty(shape, dtype=dtype, pin_memory=True) for _ in range(2)]
        backs = [torch.empty(shape, dtype=dtype, pin_memory=True) for _ in range(2 * kept)]
        lefts = [torch.empty(shape, dtype=dtype, device="cuda") for _ in range(2)]
        products = [torch.empty(shape, dtype=dtype, device="cuda") for _ in range(2)]
        totals = [torch.zeros(shape[1:], dtype=torch.float64, device="cuda") for _ in range(2)]
        torch.cuda.synchronize()  # the zeros, before other streams add to them
        streams = [torch.cuda.Stream() for _ in range(2)]
        done = [torch.cuda.Event() for _ in range(2)]

        def enqueue(slot: int, count: int) -> None:
            with torch.cuda.stream(streams[slot]):
                a, c = lefts[slot][:count], products[slot][:count]
                a.copy_(fronts[slot][:count], non_blocking=True)
                torch.bmm(a, a, out=c)
                if kept:
                    backs[slot][:count].copy_(c, non_blocking=True)
                else:
                    totals[slot].add_(c.sum(0, dtype=torch.float64))
                done[slot].record(streams[slot])

        self._stream_through(
            job,
            enqueue,
            wait=lambda slot: done[slot].synchronize(),
            fronts=[front.numpy() for front in fronts],
            backs=[back.numpy() for back in backs],
        )
        if not kept:
            torch.cuda.synchronize()
            write_sum(job, (totals[0] + totals[1]).cpu().numpy())
        return {}

    def _stream_through(
        self,
        job: Job,
        enqueue: Callable[[int, int], None],
        wait: Callable[[int], None],
        fronts: list[np.ndarray],
        backs: list[np.ndarray],
    ) -> None:
        """Slab k is read while k - 1 is on the device and k - 2 is written."""
        slabs, size = job.slabs(), job.matrix_bytes
        offset = np.load(job.stack, mmap_mode="r").offset
        writes: list[Future | None] = [None, None]
        source = os.open(job.stack, os.O_RDONLY)
        output = products_file(job) if backs else nullcontext()
        with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(1) as writer, output as target:

            def read(k: int) -> Future:
                low, high = slabs[k]
                view = bytes_of(fronts[k % 2][: high - low])
                return reader.submit(read_fully, source, view, offset + low * size)

            def leave(k: int) -> None:
                """Slab k comes off the device; its memory is free for slab k + 2."""
                slot, (low, high) = k % 2, slabs[k]
                wait(slot)
                if backs:
                    view = bytes_of(backs[slot][: high - low])
                    writes[slot] = writer.submit(
                        write_fully, target, view, transfers.PAGE + low * size
                    )
                if k + 2 < len(slabs):
                    reads[slot] = read(k + 2)

            reads = [read(k) for k in range(min(2, len(slabs)))]
            for k, (low, high) in enumerate(slabs):
                reads[k % 2].result()
                if writes[k % 2]:
                    writes[k % 2].result()
                enqueue(k % 2, high - low)
                if k:
                    leave(k - 1)
            leave(len(slabs) - 1)
            for write in writes:
                if write:
                    write.result()
        os.close(source)


class Kvikio(Peer):
    """KvikIO from the file into device memory and back, two slabs in turn, CuPy between."""

    def __init__(self, tiny: bool) -> None:
        if tiny:
            raise RuntimeError("needs a GPU")
        os.environ.setdefault("KVIKIO_NTHREADS", str(transfers.THREADS))
        os.environ.setdefault("KVIKIO_AUTO_DIRECT_IO_READ", "ON")
        os.environ.setdefault("KVIKIO_AUTO_DIRECT_IO_WRITE", "ON")
        self._xp = harness.array_module(tiny)
        import kvikio

        self._kvikio = kvikio

    def run(self, job: Job) -> dict[str, Any]:
        """Multiply slab by slab; sums are added in float64."""
        xp, size = self._xp, job.matrix_bytes
        if job.keep == "products":
            with products_file(job), self._kvikio.CuFile(job.output, "r+") as target:
                self._multiply(
                    job, lambda c, low: target.pwrite(c, c.nbytes, transfers.PAGE + low * size)
                )
            return {}
        total = xp.zeros((job.dim, job.dim), "float64")

        def add(c: Any, low: int) -> None:
            total.__iadd__(c.sum(axis=0, dtype="float64"))
            xp.cuda.get_current_stream().synchronize()

        self._multiply(job, add)
        write_sum(job, xp.asnumpy(total))
        return {}

    def _multiply(self, job: Job, keep: Callable[[Any, int], Any]) -> None:
        xp, slabs, size = self._xp, job.slabs(), job.matrix_bytes
        shape = (slabs[0][1], job.dim, job.dim)
        fronts, backs = ([xp.empty(shape, job.dtype) for _ in range(2)] for _ in range(2))
        writes: list[Any] = [None, None]
        offset = np.load(job.stack, mmap_mode="r").offset
        with self._kvikio.CuFile(job.stack, "r") as source:

            def read(k: int) -> Any:
                low, high = slabs[k]
                return source.pread(
                    fronts[k % 2][: high - low], (high - low) * size, offset + low * size
                )

            reads = [read(k) for k in range(min(2, len(slabs)))]
            for k, (low, high) in enumerate(slabs):
                slot, count = k % 2, high - low
                if reads[slot].get() != count * size:
                    raise OSError("the stack is too short")
                if writes[slot]:
                    writes[slot].get()
                a, c = fronts[slot][:count], backs[slot][:count]
                self._products(a, c)
                xp.cuda.get_current_stream().synchronize()
                writes[slot] = keep(c, low)
                if k + 2 < len(slabs):
                    reads[slot] = read(k + 2)
            for write in writes:
                if write:
                    write.get()

    def _products(self, a: Any, c: Any) -> None:
        if a.shape[-1] < LARGE:
            self._xp.matmul(a, a, out=c)
            return
        for i in range(len(a)):
            self._xp.matmul(a[i], a[i], out=c[i])


class Shardwise(Peer):
    """Ours: ``run_shard`` on a plan of one shard that is read in place."""

    def __init__(self, tiny: bool) -> None:
        from shardwise.multiply import backend as backends
        from shardwise.multiply import job
        from shardwise.plan import plan

        harness.need_gpu(tiny)
        self._xp = backends.load_backend("numpy" if tiny else "cupy")[0]
        self._run_shard, self._load = job.run_shard, plan.load

    def prepare(self, job: Job) -> None:
        """Write the plan."""
        backend = "numpy" if self._xp is np else "cupy"
        chosen = {"backend": backend, "keep": job.keep, "product": "A @ A", **job.settings}
        path = harness.write_plan(Path(job.folder), Path(job.stack), **chosen)
        self._plan = self._load(path)

    def run(self, job: Job) -> dict[str, Any]:
        """Compute the shard; what its receipt says of the stages."""
        (shard,) = self._plan.shards
        self._run_shard(self._plan, shard)
        results = self._plan.results
        receipt = harness.read_json(results.receipt(shard))
        return {"output": str(results.product(shard)), "stages": receipt.get("stages")}


PEERS = {
    "raw": Raw,
    "plain CuPy loop": Plain,
    "torch": Torch,
    "kvikio": Kvikio,
    "shardwise": Shardwise,
}


def serve(connection: Connection, peer: str, tiny: bool) -> None:
    """Start a peer, then answer jobs until the other end hangs up."""
    try:
        works = PEERS[peer](tiny)
    except (Exception, SystemExit) as error:
        connection.send({"error": harness.reason(error)})
        return
    connection.send({})
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        try:
            if isinstance(job, dict):
                connection.send(works.device(job))  # only the raw peer is asked
                continue
            works.prepare(job)
            begin = time.perf_counter()
            found = works.run(job)
            seconds = time.perf_counter() - begin
            connection.send({"output": str(job.output), "seconds": seconds, **found})
        except Exception as error:
            connection.send({"error": harness.reason(error)})


class Worker:
    """The process of one peer, started when it is first asked, and again after it died.

    Attributes
    ----------
    start_seconds
        From the start of the process to its first answer: interpreter, imports and device.
    warmed
        Kinds of jobs that this process has done before.
    """

    def __init__(self, peer: str, tiny: bool) -> None:
        self._peer, self._tiny = peer, tiny
        self._process: Any = None
        self._connection: Any = None
        self._useless: str | None = None
        self._deaths = 0
        self.start_seconds: float | None = None
        self.warmed: set[tuple[Any, ...]] = set()

    def ask(self, job: Job | dict[str, int], limit: float = JOB_SECONDS) -> dict[str, Any]:
        """The peer's answer, or ``{"error": why there is none}``."""
        if self._useless:
            return {"error": self._useless}
        if self._process is None:
            self._start()
        if self._useless:
            return {"error": self._useless}
        try:
            self._connection.send(job)
            answer = self._answer(limit)
            if "error" in answer:  # a CUDA error can outlast its job
                self.stop()
            return answer
        except OSError as error:
            return self._died(f"the process died: {harness.reason(error)}")

    def _start(self) -> None:
        begin = time.perf_counter()
        spawn = multiprocessing.get_context("spawn")  # fork and CUDA do not go together
        self._connection, theirs = spawn.Pipe()
        self._process = spawn.Process(
            target=serve, args=(theirs, self._peer, self._tiny), daemon=True
        )
        self._process.start()
        theirs.close()
        self._useless = self._answer(START_SECONDS).get("error")
        self.start_seconds = time.perf_counter() - begin
        if self._useless:
            self.stop()

    def _answer(self, limit: float) -> dict[str, Any]:
        try:
            if self._connection.poll(limit):
                return self._connection.recv()
            why = f"no answer within {limit:.0f} s"
        except EOFError:
            self._process.join(5)
            why = f"the process died (exit code {self._process.exitcode})"
        return self._died(why)

    def _died(self, why: str) -> dict[str, Any]:
        self.stop()
        self._deaths += 1
        if self._deaths >= DEATHS:
            self._useless = why
        return {"error": why}

    def stop(self) -> None:
        """End the process; the next job starts another."""
        if self._process is not None:
            self._connection.close()
            self._process.join(5)
            if self._process.is_alive():
                self._process.kill()
                self._process.join(5)
            self._process = None
            self.warmed.clear()
