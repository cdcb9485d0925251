"""Where a batch lives while it is multiplied, and how bytes get there and back.

A lane has host memory that copies start from (slabs), batches that kernels work on, and three
tracks that run side by side: up, work and down. On NumPy all of it is this machine's memory, and
every step is done when its call returns. A lane may serve many shards, one after the other: slabs
that were given back to it are used again.
"""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np

from shardwise.files.direct import PAGE, aligned_empty
from shardwise.records.timeline import Span
from shardwise.units import human_bytes


class Mark(Protocol):
    """A point on a track, for callers that need to know when the track gets there."""

    def wait(self) -> Span:
        """Wait until it is done; return when it was in progress, by `time.perf_counter`."""


class _Slabs:
    """Host memory of a lane, in pieces that are allocated once and used many times."""

    def __init__(self) -> None:
        self._spare: list[np.ndarray] = []
        self._lock = threading.Lock()

    def slab(self, nbytes: int) -> np.ndarray:
        """Host memory to read into or write from: ``nbytes`` or more, beginning at a page."""
        with self._lock:
            for i, slab in enumerate(self._spare):
                if slab.nbytes >= nbytes:
                    return self._spare.pop(i)
            if self._spare:
                self._spare.pop()  # it is too small: a larger one takes its place
        return self._new_slab(nbytes)

    def keep(self, slab: np.ndarray) -> None:
        """Take a slab back for the next caller; no copy from or to it may be in progress."""
        with self._lock:
            self._spare.append(slab)

    def _new_slab(self, nbytes: int) -> np.ndarray:
        raise NotImplementedError


class HostLane(_Slabs):
    """NumPy: both slabs and batches are in host memory."""

    xp = np
    memory_errors = (MemoryError,)

    def set_clock(self) -> None:
        """Compare the clocks of the tracks with that of the host, for the marks to come."""

    def settle(self) -> None:
        """Wait until nothing runs on any track."""

    def release(self) -> None:
        """Give back memory that is no longer used."""

    def free(self) -> str:
        """How much memory there is, as text."""
        return "this machine has less"

    def total(self) -> int:
        """Bytes of memory that this machine has in all."""
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def bind(self) -> None:
        """Make the calling thread use this lane's device."""

    def _new_slab(self, nbytes: int) -> np.ndarray:
        return aligned_empty(nbytes)

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Any:
        """A batch; its unused places hold zeros."""
        return np.zeros(shape, dtype)

    def upload(self, views: Sequence[np.ndarray], target: Any) -> Mark:
        """Copy bytes of a slab to bytes of a batch; the mark says when the slab is free."""
        return self._copied(views, target)

    def download(self, source: Any, target: np.ndarray) -> Mark:
        """Copy bytes of a batch to bytes of a slab; the mark says when they are there."""
        return self._copied([source], target)

    def _copied(self, views: Sequence[np.ndarray], target: np.ndarray) -> Mark:
        began, at = time.perf_counter(), 0
        for view in views:
            np.copyto(target[at : at + view.nbytes], view)
            at += view.nbytes
        return _Done((began, time.perf_counter()))

    @contextmanager
    def work(self) -> Iterator[float]:
        """What is called inside runs on the work track, after all uploads so far.

        Yields when it began, for `worked`.
        """
        yield time.perf_counter()

    def worked(self, began: float) -> Mark:
        """A mark of all work so far, timed from where `work` began."""
        return _Done((began, time.perf_counter()))

    def reuse(self, mark: Mark) -> None:
        """Hold back later uploads until the work of a mark is done."""

    def follow(self, mark: Mark) -> None:
        """Hold back later downloads until the work of a mark is done."""

    def fetch(self, array: Any) -> np.ndarray:
        """A small array in host memory, after the work that was followed."""
        return array


class _Done(NamedTuple):
    """A mark of something that is done."""

    span: Span

    def wait(self) -> Span:
        return self.span


class CudaLane(_Slabs):
    """cupy: pinned slabs in host memory, batches on the device, one CUDA stream per track."""

    def __init__(self, xp: Any) -> None:
        super().__init__()
        self.xp = xp
        self._device = xp.cuda.Device()
        self._up, self._work, self._down = (xp.cuda.Stream(non_blocking=True) for _ in range(3))
        # No track: an event of its own is passed at once, whatever the others do.
        self._clock = xp.cuda.Stream(non_blocking=True)
        self.memory_errors = (xp.cuda.memory.OutOfMemoryError,)
        self.set_clock()

    def set_clock(self) -> None:
        # To be called now and then: a mark's distance from here is a float32 of milliseconds, of
        # which an hour leaves a quarter of one.
        event = self._event(self._clock)
        event.synchronize()
        self._zero = _Zero(time.perf_counter(), event)

    def settle(self) -> None:
        for stream in (self._up, self._work, self._down):
            stream.synchronize()

    def release(self) -> None:
        self.xp.get_default_memory_pool().free_all_blocks()

    def free(self) -> str:
        free, total = self._device.mem_info
        return f"the device has {human_bytes(free)} free of {human_bytes(total)}"

    def total(self) -> int:
        return self._device.mem_info[1]

    def bind(self) -> None:
        self._device.use()

    def _new_slab(self, nbytes: int) -> np.ndarray:
        raw = np.frombuffer(self.xp.cuda.alloc_pinned_memory(nbytes + PAGE), np.uint8)
        first = -raw.ctypes.data % PAGE
        return raw[first : first + nbytes]

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Any:
        with self._work:
            block = self.xp.zeros(shape, dtype)
            self._up.wait_event(self._work.record())
        return block

    def upload(self, views: Sequence[np.ndarray], target: Any) -> Mark:
        runtime, began, at = self.xp.cuda.runtime, self._beginning(self._up), 0
        for view in views:
            runtime.memcpyAsync(
                target.data.ptr + at, view.ctypes.data, view.nbytes,
                runtime.memcpyHostToDevice, self._up.ptr,
            )  # fmt: skip
            at += view.nbytes
        return _CudaMark(self.xp, *began, self._event(self._up))

    def download(self, source: Any, target: np.ndarray) -> Mark:
        runtime, began = self.xp.cuda.runtime, self._beginning(self._down)
        runtime.memcpyAsync(
            target.ctypes.data, source.data.ptr, source.nbytes,
            runtime.memcpyDeviceToHost, self._down.ptr,
        )  # fmt: skip
        return _CudaMark(self.xp, *began, self._event(self._down))

    @contextmanager
    def work(self) -> Iterator[tuple["_Zero", Any]]:
        self._work.wait_event(self._event(self._up))
        with self._work:
            yield self._beginning(self._work)

    def worked(self, began: tuple["_Zero", Any]) -> Mark:
        return _CudaMark(self.xp, *began, self._event(self._work))

    def reuse(self, mark: "_CudaMark") -> None:
        self._up.wait_event(mark.event)

    def follow(self, mark: "_CudaMark") -> None:
        self._down.wait_event(mark.event)

    def fetch(self, array: Any) -> np.ndarray:
        return array.get(stream=self._down)

    def _beginning(self, stream: Any) -> tuple["_Zero", Any]:
        zero = self._zero  # before the event: another thread may set the clock meanwhile
        return zero, self._event(stream)

    def _event(self, stream: Any) -> Any:
        event = self.xp.cuda.Event(block=True)  # else who waits for it keeps a core busy
        event.record(stream)
        return event


class _Zero(NamedTuple):
    """One moment, by `time.perf_counter` and as an event."""

    host: float
    event: Any


class _CudaMark:
    """A point in a stream, and the one where what is timed began."""

    def __init__(self, xp: Any, zero: _Zero, began: Any, event: Any) -> None:
        self._xp, self._zero, self._began, self.event = xp, zero, began, event

    def wait(self) -> Span:
        self.event.synchronize()
        elapsed = self._xp.cuda.get_elapsed_time
        ended = self._zero.host + elapsed(self._zero.event, self.event) / 1e3
        # Not as the difference of two long times, which round.
        return ended - elapsed(self._began, self.event) / 1e3, ended


Lane = HostLane | CudaLane
"""What :class:`HostLane` says about each method holds for both."""
