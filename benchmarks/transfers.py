"""Raw transfers and products, timed: files, page cache, PCIe, GEMM, with nothing of Shardwise.

Files are read and written by threads in blocks of 8 MiB. Cold means that a probe of the page cache
found nothing of the file.
"""

import errno
import mmap
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import harness
import numpy as np

BLOCK = 8 * harness.MIB
PAGE = 4096
RING = 64  # blocks of memory that reads and writes go round in
THREADS = 16
GEMM_DIM = 4096
PCIE_BYTES = 256 * harness.MIB
PROBES = 64


def pinned(xp: Any, nbytes: int) -> np.ndarray:
    """Page-aligned host memory as bytes, pinned where there is a GPU."""
    if xp is np:
        return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)
    raw = np.frombuffer(xp.cuda.alloc_pinned_memory(nbytes + PAGE), np.uint8)
    skip = -raw.ctypes.data % PAGE
    return raw[skip : skip + nbytes]


def random_bytes(nbytes: int) -> np.ndarray:
    """Page-aligned bytes that no device can compress."""
    block = pinned(np, nbytes)
    block[:] = np.frombuffer(np.random.default_rng(0).bytes(nbytes), np.uint8)
    return block


def ring(xp: Any, tiny: bool = False) -> np.ndarray:
    """Memory of random bytes that reads and writes go round in, a block at a time."""
    memory = pinned(xp, (2 if tiny else RING) * BLOCK)
    memory[:] = np.resize(random_bytes(BLOCK), len(memory))
    return memory


def cached_fraction(path: Path) -> float | None:
    """Share of evenly spaced pages of a file in the page cache; None if its file system is mute.

    A read with ``RWF_NOWAIT`` succeeds only for what is there. The advice against readahead keeps
    a probe from bringing in more than the page that it looks at.
    """
    hits = 0
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        for offset in _probes(fd):
            try:
                hits += os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT)
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
                return None
    finally:
        os.close(fd)
    return hits / PROBES


def _probes(fd: int) -> list[int]:
    """Evenly spaced bytes of a file."""
    size = os.fstat(fd).st_size
    return [i * size // PROBES for i in range(PROBES)]


def evict(path: Path) -> None:
    """Take a file out of the page cache, and see that it worked.

    Raises
    ------
    RuntimeError
        Where some of it stays.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        for attempt in range(8):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            if (left := cached_fraction(path)) == 0:
                # Each probe has begun to read its page; once it is there it can go, too.
                for offset in _probes(fd):
                    os.pread(fd, 1, offset)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                return
            _drop_caches()
            if left is None:
                return
            time.sleep(0.2 * attempt)
    finally:
        os.close(fd)
    raise RuntimeError(f"{left:.0%} of the file stays in the page cache")


def _drop_caches() -> None:
    """Root's way, for file systems that take advice lightly."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1\n")
    except OSError:
        return


def warm(path: Path, memory: np.ndarray) -> None:
    """Bring a file into the page cache, and see that it stays."""
    for _ in range(2):
        read(path, memory, direct=False)
        if (there := cached_fraction(path)) == 1:
            return
    if there is None:
        return
    raise RuntimeError(f"only {there:.0%} of the file is in the page cache")


def _open(path: Path, flags: int, direct: bool) -> int:
    try:
        return os.open(path, flags | (os.O_DIRECT if direct else 0), 0o600)
    except OSError as error:
        raise RuntimeError(f"this file system refuses O_DIRECT: {error}") from error


def _start(work: Callable[[int], None], blocks: int, threads: int) -> Callable[[], None]:
    """Let threads share out the numbers below ``blocks``; a call that waits for all of them."""
    pool = ThreadPoolExecutor(threads)
    started = [pool.submit(work, number) for number in range(blocks)]
    pool.shutdown(wait=False)

    def wait() -> None:
        for future in started:
            future.result()

    return wait


def _ring(memory: np.ndarray, number: int) -> np.ndarray:
    slots = len(memory) // BLOCK
    low = number % slots * BLOCK
    return memory[low : low + BLOCK]


def _start_read(
    paths: list[Path], memory: np.ndarray, direct: bool, threads: int
) -> Callable[[], None]:
    """Start to read whole files; threads share out the blocks of all of them."""
    sizes = {path: path.stat().st_size for path in paths}
    blocks = [(path, low) for path, size in sizes.items() for low in range(0, size, BLOCK)]

    def work(number: int) -> None:
        path, low = blocks[number]
        fd = _open(path, os.O_RDONLY, direct)
        try:
            got, wanted = os.preadv(fd, [_ring(memory, number)], low), min(BLOCK, sizes[path] - low)
        finally:
            os.close(fd)
        if got != wanted:
            raise OSError(f"read {got} bytes of {wanted}")

    return _start(work, len(blocks), threads)


def _start_write(
    path: Path, nbytes: int, memory: np.ndarray, direct: bool, threads: int
) -> Callable[[], None]:
    """Start to write a new file, whole pages of it; the call that waits flushes it to the disk."""
    nbytes = nbytes // PAGE * PAGE
    fd = _open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, direct)
    os.posix_fallocate(fd, 0, nbytes)

    def work(number: int) -> None:
        low = number * BLOCK
        piece = _ring(memory, number)[: nbytes - low]
        if os.pwritev(fd, [piece], low) != len(piece):
            raise OSError("wrote less than asked for")

    wait = _start(work, -(-nbytes // BLOCK), threads)

    def finish() -> None:
        try:
            wait()
            os.fsync(fd)
        finally:
            os.close(fd)

    return finish


def read(path: Path, memory: np.ndarray, direct: bool, threads: int = THREADS) -> float:
    """Seconds to read a file."""
    return read_files([path], memory, direct, threads)


def read_files(paths: list[Path], memory: np.ndarray, direct: bool, threads: int) -> float:
    """Seconds to read several files."""
    begin = time.perf_counter()
    _start_read(paths, memory, direct, threads)()
    return time.perf_counter() - begin


def write(
    path: Path, nbytes: int, memory: np.ndarray, direct: bool = True, threads: int = THREADS
) -> float:
    """Seconds to write a new file and flush it to the disk."""
    path.unlink(missing_ok=True)  # to free an old one is no part of it
    begin = time.perf_counter()
    _start_write(path, nbytes, memory, direct, threads)()
    return time.perf_counter() - begin


def read_and_write(
    source: Path,
    target: Path,
    nbytes: int,
    memory: np.ndarray,
    direct: bool = True,
    threads: int = THREADS,
) -> float:
    """Seconds to read one file and to write another, directly, at the same time."""
    half = len(memory) // BLOCK // 2 * BLOCK
    target.unlink(missing_ok=True)
    begin = time.perf_counter()
    read = _start_read([source], memory[:half], direct, threads)
    write = _start_write(target, nbytes, memory[half:], True, threads)
    read()
    write()
    return time.perf_counter() - begin


def pcie(xp: Any, up: bool, down: bool, nbytes: int = PCIE_BYTES, copies: int = 8) -> float:
    """Bytes per second each way between pinned memory and the device."""
    lanes = []
    for wanted, kind in ((up, 1), (down, 2)):  # cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost
        if wanted:
            host, device = pinned(xp, nbytes), xp.empty(nbytes, np.uint8)
            ends = [device.data.ptr, host.ctypes.data]
            to, source = ends if kind == 1 else ends[::-1]
            stream = xp.cuda.Stream(non_blocking=True)
            lanes.append((to, source, kind, stream, host, device))
    xp.cuda.runtime.deviceSynchronize()
    begin = time.perf_counter()
    for _ in range(copies):
        for to, source, kind, stream, *_ in lanes:
            xp.cuda.runtime.memcpyAsync(to, source, nbytes, kind, stream.ptr)
    for lane in lanes:
        lane[3].synchronize()
    return copies * nbytes / (time.perf_counter() - begin)


def gemm(xp: Any, dtype: str, dim: int = GEMM_DIM) -> float:
    """Floating-point operations per second of one product after the other."""
    a = harness.normal(xp, (dim, dim), dtype)
    out = xp.empty_like(a)
    harness.seconds_of(xp, lambda: xp.matmul(a, a, out=out), 2)
    return 2 * dim**3 / harness.seconds_of(xp, lambda: xp.matmul(a, a, out=out), 10)


def file_system(folder: Path) -> str:
    """Type and device of the file system that a folder lies on, and whether cold can be proven."""
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    inside = [m for m in lines if folder.resolve().is_relative_to(m[1].replace("\\040", " "))]
    device, _, kind, *_ = max(inside, key=lambda m: len(m[1]))
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        file.write(b"0")
        file.flush()
        mute = cached_fraction(Path(file.name)) is None
    return f"{kind} on {device}" + ", whose page cache cannot be probed" * mute
