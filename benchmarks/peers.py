"""The programs that ``shard_jobs.py`` compares, each in a process of its own.

Every peer takes the same ``.npy`` stack from its file to a result that is flushed to the disk. A
peer that dies, hangs or cannot be imported costs its own cells only.
"""

import functools
import multiprocessing
import os
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import harness
import numpy as np
import transfers

START_SECONDS = 60.0
JOB_SECONDS = 60.0


@dataclass(frozen=True)
class Job:
    """One stack to multiply."""

    stack: str
    folder: str
    dtype: str
    dim: int
    matrices: int
    keep: str
    cached: bool
    product: str = "A @ A"
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements of the stack."""
        return self.matrices * self.dim**2 * np.dtype(self.dtype).itemsize

    @property
    def output(self) -> Path:
        """Where a peer that is told so writes its result."""
        return Path(self.folder) / "result.npy"


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
        transposed = job.product == "A.T @ A"
        stack = np.load(job.stack, mmap_mode="r")
        if job.keep == "sum":
            total = xp.zeros(stack.shape[1:], "float64")
            for matrix in stack:
                a = xp.asarray(matrix)
                total += (a.T if transposed else a) @ a
            with open(job.output, "wb") as file:
                np.save(file, to_host(total))
                file.flush()
                os.fsync(file.fileno())
            return {}
        out = np.lib.format.open_memmap(job.output, "w+", stack.dtype, stack.shape)
        for i, matrix in enumerate(stack):
            a = xp.asarray(matrix)
            out[i] = to_host(a @ a)
        out.flush()
        with open(job.output, "rb") as file:
            os.fsync(file.fileno())
        return {}


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
        chosen = {"backend": backend, "keep": job.keep, "product": job.product, **job.settings}
        path = harness.write_plan(Path(job.folder), Path(job.stack), **chosen)
        self._plan = self._load(path)

    def run(self, job: Job) -> dict[str, Any]:
        """Compute the shard; where its product is."""
        (row,) = self._plan.shards.values()
        self._run_shard(self._plan, row.shard)
        return {"output": str(self._plan.results.product(row.name))}


PEERS = {"raw": Raw, "plain CuPy loop": Plain, "shardwise": Shardwise}


@functools.cache
def _own(peer: str, tiny: bool) -> Any:
    """The one peer of this process."""
    return PEERS[peer](tiny)


def _begin(peer: str, tiny: bool) -> None:
    _own(peer, tiny)


def _do(peer: str, tiny: bool, job: Job | dict[str, int]) -> dict[str, Any]:
    works = _own(peer, tiny)
    if isinstance(job, dict):
        return works.device(job)  # only the raw peer is asked
    works.prepare(job)
    begin, cpu = time.perf_counter(), time.process_time()
    found = works.run(job)
    spent = {"seconds": time.perf_counter() - begin, "cpu": time.process_time() - cpu}
    return {"output": str(job.output), **spent, **found}


class Worker:
    """The process of one peer, started when it is first asked, and again after it has failed.

    Attributes
    ----------
    warmed
        Kinds of jobs that this process has done before.
    """

    def __init__(self, peer: str, tiny: bool) -> None:
        self._of = (peer, tiny)
        self._process: ProcessPoolExecutor | None = None
        self._pid = 0
        self.warmed: set[tuple[Any, ...]] = set()

    def ask(self, job: Job | dict[str, int]) -> dict[str, Any]:
        """The peer's answer, or ``{"error": why there is none}``."""
        try:
            if self._process is None:
                self._start()
            return self._process.submit(_do, *self._of, job).result(JOB_SECONDS)
        except (Exception, SystemExit) as error:  # one of CUDA's can outlast its job
            self.stop()
            return {"error": harness.reason(error)}

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")  # fork and CUDA do not go together
        self._process = ProcessPoolExecutor(1, spawn)
        self._pid = self._process.submit(os.getpid).result(START_SECONDS)
        self._process.submit(_begin, *self._of).result(START_SECONDS)

    def stop(self) -> None:
        """End the process, also where it hangs; the next job starts another."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._process.shutdown()
            self._process = None
            self.warmed.clear()
