"""Raw rates of this node, measured with the parts that a shard goes through, each on its own.

The same reads, writes, copies and kernels as in the pipeline, with nothing else under way. All of
it takes some ten seconds: each probe ends at its time limit, however slow the node. The file that
is written and read has no name, so that nothing is left of it even after a ``kill -9``.
"""

import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from shardwise import devices, sizes
from shardwise.ceilings import RATES, Ceilings, arithmetic
from shardwise.disk import PAGE, Extent, ExtentReader, ExtentWriter, allocate, open_direct, settle
from shardwise.errors import ShardwiseError
from shardwise.kernels import kernel
from shardwise.observation import Device
from shardwise.paths import Results
from shardwise.planfile import Plan
from shardwise.problem import Problem
from shardwise.sources import SPARE_BYTES
from shardwise.units import human_bytes

FILE_BYTES = 4 * 1024**3
"""Of the temporary file at most: more than what a disk takes into its own cache at once."""

FREE_SHARE = 0.125
"""Of the room on the disk, so much is used at most: somebody else may be about to need it."""

DISK_SECONDS = 3.0
"""That writing takes, and reading, after which no further slab is begun."""

SLABS = 4
"""Under way at once: as many as direct requests are (disk.py)."""

DEVICE_BYTES = 2 * 1024**3
"""Of device memory at most, the CUDA context included."""

COPIED_BYTES = 512 * sizes.MIB
DEVICE_DIM = 4096
HOST_DIM, LEAST_DIM = 2048, 256

_COPIES = 32
_TRIES = 3
_PRODUCT_SECONDS = 0.25
_Started = Callable[[int, np.ndarray], Sequence[Future]]


def measure(
    results: Results, lane: Any, device: Mapping[str, Any], plan: Plan | None, alone: bool = True
) -> Ceilings:
    """Measure this node and the device of a lane.

    Parameters
    ----------
    lane
        Of lanes.py; its slabs are used and given back.
    device
        Name and, of a GPU, UUID.
    plan
        Whose products are timed; None: those of float32 and float64.
    alone
        Whether nothing else should be at work on this node.
    """
    remarks: list[str] = []
    rates: dict[str, float | None] = dict.fromkeys(RATES)
    nbytes = PAGE + sizes.SLAB_BYTES + SPARE_BYTES  # as the pipeline takes them, to use them again
    slabs = [lane.slab(nbytes) for _ in range(SLABS)]
    try:
        slabs[0][:] = np.frombuffer(np.random.default_rng(0).bytes(slabs[0].nbytes), np.uint8)
        for slab in slabs[1:]:
            slab[:] = slabs[0]
        try:
            rates |= _disk(results, slabs, remarks)
        except (OSError, ShardwiseError) as error:
            remarks.append(f"the disk was not measured: {error}")
        if lane.xp is not np:
            rates |= _pcie(lane, slabs[0][: sizes.SLAB_BYTES])
        compute = {arithmetic(*way): _products(lane, *way) for way in _ways(lane, plan)}
    finally:
        lane.settle()
        for slab in slabs:
            lane.keep(slab)
        lane.release()
    node = devices.node()
    who = Device(str(device["name"]), device.get("uuid"), node)
    kept = tuple(remark[:200] for remark in remarks)
    return Ceilings(node, who, time.time(), rates, compute, alone, kept)


def _ways(lane: Any, plan: Plan | None) -> list[tuple[str, str]]:
    """Element types and precisions whose products are timed."""
    dtypes = ["float32", "float64"] if plan is None else [plan.dtype]
    ways = [(dtype, "ieee") for dtype in dtypes]
    if lane.xp is np:  # which has no tf32
        return ways
    return ways + [(dtype, "tf32") for dtype in dtypes if dtype in ("float32", "complex64")]


# The disk.


def _disk(results: Results, slabs: list[np.ndarray], remarks: list[str]) -> dict[str, float]:
    """Bytes a second that the disk of the results folder is written and read at."""
    folder = results.ceilings
    folder.mkdir(parents=True, exist_ok=True)
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    nbytes = min(FILE_BYTES, int(FREE_SHARE * free)) // sizes.SLAB_BYTES * sizes.SLAB_BYTES
    if nbytes < SLABS * sizes.SLAB_BYTES:
        remarks.append(f"the disk was not measured: only {human_bytes(free)} of it are free")
        return {}
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        name = f"/proc/self/fd/{file.fileno()}"
        if (direct := open_direct(name, os.O_RDONLY)) is None:
            remarks.append("this disk has no direct I/O: its rates are those of the page cache")
        else:
            os.close(direct)
        # Through the page cache the disk is waited for after each slab: a minute of writes may
        # fit the cache, and flushing them would take as long as it takes.
        allocate(file.fileno(), nbytes, folder)
        written, write = _write(file.fileno(), slabs, nbytes, flush=direct is None)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with ExtentReader() as files:
            if files.cached(Extent(name, 0, written)):
                remarks.append("the page cache kept what was written: the reading rate is its own")
            read = _read(files, name, slabs, written)
            copied = int(min(COPIED_BYTES, written, DISK_SECONDS / 3 * read))
            copied = copied // sizes.SLAB_BYTES * sizes.SLAB_BYTES
            found = {"read": read, "write": write}
            for low in range(0, copied, sizes.SLAB_BYTES):
                os.preadv(file.fileno(), [slabs[0][: sizes.SLAB_BYTES]], low)
            return found | ({"copy": _read(files, name, slabs, copied)} if copied else {})


def _write(descriptor: int, slabs: list[np.ndarray], nbytes: int, flush: bool) -> tuple[int, float]:
    """Bytes that were written to an open file and flushed to the disk, and those a second."""
    writer = ExtentWriter(descriptor)

    def start(offset: int, slab: np.ndarray) -> Sequence[Future]:
        futures = writer.start(offset, slab)
        if flush:
            settle(futures)
            os.fdatasync(descriptor)
        return futures

    began = time.perf_counter()
    try:
        written = _through(start, slabs, nbytes)
        os.fsync(descriptor)
    finally:
        writer.close()
    return written, written / (time.perf_counter() - began)


def _read(files: ExtentReader, name: str, slabs: list[np.ndarray], nbytes: int) -> float:
    """Bytes a second that a file is read at, slab by slab, several at once."""
    with ThreadPoolExecutor(len(slabs)) as pool:

        def start(offset: int, slab: np.ndarray) -> Sequence[Future]:
            return [pool.submit(files.read, [Extent(name, offset, slab.nbytes)], slab)]

        began = time.perf_counter()
        return _through(start, slabs, nbytes) / (time.perf_counter() - began)


def _through(start: _Started, slabs: list[np.ndarray], nbytes: int) -> int:
    """Start a transfer for each slab of a file until the time is up; bytes that were moved."""
    end, offset = time.perf_counter() + DISK_SECONDS, 0
    under_way: deque[Sequence[Future]] = deque()
    while offset < nbytes and time.perf_counter() < end:
        if len(under_way) == len(slabs):
            settle(under_way.popleft())
        slab = slabs[offset // sizes.SLAB_BYTES % len(slabs)][: sizes.SLAB_BYTES]
        under_way.append(start(offset, slab))
        offset += slab.nbytes
    settle([future for futures in under_way for future in futures])
    return offset


# The device.


def _pcie(lane: Any, slab: np.ndarray) -> dict[str, float]:
    """Bytes a second between pinned memory and the device, one way at a time."""
    block = lane.zeros((slab.nbytes,), "uint8")
    ways = {
        "upload": lambda: lane.upload([slab], block),
        "download": lambda: lane.download(block, slab),
    }
    return {way: max(_copied(copy, slab.nbytes) for _ in range(_TRIES))
            for way, copy in ways.items()}  # fmt: skip


def _copied(copy: Callable[[], Any], nbytes: int) -> float:
    copy().wait()
    began = time.perf_counter()
    marks = [copy() for _ in range(_COPIES)]
    marks[-1].wait()  # those of one track end in order
    return _COPIES * nbytes / (time.perf_counter() - began)


def _products(lane: Any, dtype: str, precision: str) -> float:
    """Operations a second of square products, by the kernel that multiplies shards.

    On a CPU the size follows from its speed: integers have no BLAS and take a hundred times as
    long.
    """
    if lane.xp is not np:
        return _timed(lane, DEVICE_DIM, dtype, precision)
    dim = LEAST_DIM
    while True:
        rate = _timed(lane, dim, dtype, precision, once=True)
        if dim >= HOST_DIM or 2 * (2 * dim) ** 3 / rate > _PRODUCT_SECONDS:
            return max(rate, _timed(lane, dim, dtype, precision))
        dim *= 2


def _timed(lane: Any, dim: int, dtype: str, precision: str, once: bool = False) -> float:
    """The best rate of some tries, or of one call, of products of a size."""
    problem = Problem(1, (dim, dim), "A @ A", dtype)
    own = kernel(lane.xp, problem, precision)
    count = 1 if lane.xp is np else sizes.call_matrices(problem)
    block = lane.zeros((count, dim, dim), dtype)
    out = lane.zeros((count, dim, dim), problem.product_dtype)
    with lane.work():  # of numbers: a GPU multiplies zeros with less power, and faster
        # A band of them, again and again: a task has no host memory for so many.
        band = lane.xp.asarray(_numbers((LEAST_DIM, dim), dtype))
        block.reshape(-1, LEAST_DIM, dim)[...] = band

    def seconds(times: int) -> float:
        began = time.perf_counter()
        with lane.work():
            for _ in range(times):
                own.multiply(block, None, out, count)
        lane.worked(began).wait()
        return (time.perf_counter() - began) / times

    seconds(1)  # the first call starts threads, and loads what it needs
    best = seconds(1)
    if not once:
        times = max(1, int(_PRODUCT_SECONDS / max(best, 1e-6)))
        best = min(seconds(min(times, 1000)) for _ in range(_TRIES))
    return count * problem.flop / max(best, 1e-9)


def _numbers(shape: Iterable[int], dtype: str) -> np.ndarray:
    """Small numbers of a dtype, drawn once."""
    random = np.random.default_rng(0)
    if "int" in dtype:
        return random.integers(0, 4, tuple(shape)).astype(dtype)
    return random.standard_normal(tuple(shape), np.float32).astype(dtype)
