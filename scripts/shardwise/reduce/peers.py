"""The other ranks of the reduce: buffers to and from them, and a limit to waiting for them.

A rank that waits in MPI waits for ever, whatever became of the others. So every wait polls here,
ranks send each other signs of life in a ring, and a rank that has not heard of its neighbour for
the time limit ends all of them. An error of one rank is sent to all, so that it is shown once. All
messages are buffers of NumPy; nothing is pickled.
"""

import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import numpy as np

from shardwise.errors import IntegrityError, ShardwiseError, TryAgain, of_code, of_system
from shardwise.files.checksum import raw_bytes
from shardwise.plan.memory import REDUCE_LIMIT_SECONDS
from shardwise.reduce.comm import Comm, Request, abort


def describe_arrays(arrays: Iterable[np.ndarray]) -> str:
    """Dtypes and shapes of arrays of numbers, as a text without a line break."""
    return json.dumps([[array.dtype.str, list(array.shape)] for array in arrays])


def allocate_arrays(text: str, nbytes: int | None = None) -> list[np.ndarray]:
    """New arrays, of what a text describes; ``nbytes`` is what they must come to.

    Raises
    ------
    IntegrityError
        Before any memory is taken, where the text describes no arrays, or others than these.
    """
    try:
        shapes = [(np.dtype(str(descr)), tuple(shape)) for descr, shape in json.loads(text)]
        # Among the other kinds are objects, and texts of no length that NumPy would lengthen.
        if any(dtype.kind not in "biufc" for dtype, _ in shapes):
            raise ValueError("no numbers")
        if any(type(n) is not int or n < 0 for _, shape in shapes for n in shape):
            raise ValueError("no shape")
        total = sum(dtype.itemsize * math.prod(shape) for dtype, shape in shapes)
        if nbytes is not None and total != nbytes:
            raise ValueError(f"{total} bytes are described, and {nbytes} are there")
        return [np.empty(shape, dtype) for dtype, shape in shapes]
    except (ValueError, TypeError, SyntaxError, RecursionError) as error:
        raise IntegrityError(f"a description of arrays is damaged ({error})") from error


log = logging.getLogger(__name__)

_ALIVE, _FAILED, _DATA = 1, 2, 3
_LOOK_SECONDS = 0.1
_SHORTEST_SECONDS, _SHORT_SECONDS = 2e-5, 2e-3
_SIGNS = 20  # signs of life within the limit
_MOST_TEXT = 16384


class Peers:
    """All ranks of a communicator, as one of them sees them, on a duplicate of it.

    After ``limit`` seconds without a sign of life all ranks are ended.
    """

    def __init__(self, comm: Comm, limit: float = REDUCE_LIMIT_SECONDS) -> None:
        self.rank, self.size = comm.rank, comm.size
        self._limit = limit
        self._look = 0.0  # when to look at messages again
        self._heard = self._told = time.monotonic()
        self._comm, self._sign, self._sent = comm, None, None
        self._farewell: list[Request] = []
        self._heard_error: ShardwiseError | None = None
        self._pool = ThreadPoolExecutor(1, "step")
        if self.size > 1:
            self._comm, request = comm.Idup()
            self._wait_for_start(request)
            self._heard = time.monotonic()
            self._listen()

    def _wait_for_start(self, request: Request) -> None:
        began = time.monotonic()
        while not request.Test():
            if time.monotonic() - began > self._limit:
                self._end(f"the other ranks have not begun within {self._limit:.0f} s")
            _pause(began)

    def _listen(self) -> None:
        self._buffer = np.empty(1, np.uint8)
        self._sign = self._comm.Irecv(self._buffer, (self.rank - 1) % self.size, _ALIVE)

    # Signs of life.

    def beat(self) -> None:
        """Say that this rank lives, and raise what another rank failed with; call it often."""
        now = time.monotonic()
        if self.size == 1 or now < self._look:
            return
        self._look = now + min(_LOOK_SECONDS, self._limit / _SIGNS)
        while self._sign.Test():
            self._heard = now
            self._listen()
        if now - self._told > self._limit / _SIGNS and (self._sent is None or self._sent.Test()):
            self._told = now
            self._sent = self._comm.Isend(np.ones(1, np.uint8), (self.rank + 1) % self.size, _ALIVE)
        if now - self._heard > self._limit:
            silent = (self.rank - 1) % self.size
            self._end(f"rank {silent} has given no sign of life for {self._limit:.0f} s")
        self._hear_of_failure()

    def _hear_of_failure(self) -> None:
        from mpi4py import MPI

        status = MPI.Status()
        if self._comm.Iprobe(MPI.ANY_SOURCE, _FAILED, status):
            raw = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            self._comm.Recv(raw, status.Get_source(), _FAILED)
            self._heard_error = _decoded(raw)
            raise self._heard_error

    def _end(self, what: str) -> None:
        """End all ranks at once."""
        log.error("reduce: %s; all ranks end, nothing was committed: try again", what)
        abort(self._comm, TryAgain.exit_code)

    @contextmanager
    def sharing_errors(self) -> Iterator[None]:
        """Tell all others of an error that this rank alone runs into; of the disk: `TryAgain`."""
        try:
            yield
        except ShardwiseError as error:
            if error is not self._heard_error:
                self._tell(error)
            raise
        except OSError as error:
            failure = of_system(error)
            self._tell(failure)
            raise failure from error

    def _tell(self, error: ShardwiseError) -> None:
        message = _encoded(error)
        others = [rank for rank in range(self.size) if rank != self.rank]
        self._farewell = [self._comm.Isend(message, other, _FAILED) for other in others]

    def close(self) -> None:
        """Stop listening; every rank calls this in the end."""
        if self.size > 1:
            self._wait(self._comm.Ibarrier())
            self._sign.Cancel()
            self._sign.Wait()
        self._pool.shutdown()

    # Waiting.

    def _wait(self, request: Request) -> None:
        began = time.monotonic()
        while not request.Test():
            self.beat()
            _pause(began)

    def result(self, future: Future, what: str) -> Any:
        """The result of work that a thread of this rank does; past the limit all ranks end."""
        began = time.monotonic()
        while not wait([future], timeout=_LOOK_SECONDS).done:
            self.beat()
            if time.monotonic() - began > self._limit:
                self._end(f"rank {self.rank} has waited for {self._limit:.0f} s for {what}")
        return future.result()

    def during(self, work: Callable[[], Any], what: str) -> Any:
        """Do something that may take long, such as to write a file, and give signs of life."""
        return self.result(self._pool.submit(work), what)

    # Together.

    def agree(self, work: Callable[[], Any], what: str) -> Any:
        """Do something on every rank; where any fails, raise the lowest rank's error on all."""
        error, result = None, None
        try:
            result = self.during(work, what)
        except ShardwiseError as caught:
            error = caught
        except OSError as caught:
            error = of_system(caught)
        if self.size == 1:
            if error:
                raise error
            return result
        codes = np.zeros(self.size, np.int64)
        own = np.array([error.exit_code if error else 0], np.int64)
        self._wait(self._comm.Iallgather(own, codes))
        if codes.any():
            first = int(np.flatnonzero(codes)[0])
            raise _decoded(self.broadcast(_encoded(error) if error else None, first))
        return result

    def broadcast(self, array: np.ndarray | None, root: int = 0) -> np.ndarray:
        """The bytes ``(n,)`` of uint8 of the root, on every rank."""
        if self.size == 1:
            return array
        length = np.array([0 if array is None else array.nbytes], np.int64)
        self._wait(self._comm.Ibcast(length, root))
        raw = array if self.rank == root else np.empty(int(length[0]), np.uint8)
        self._wait(self._comm.Ibcast(raw, root))
        return raw

    def xor(self, array: np.ndarray) -> np.ndarray:
        """The bitwise XOR over all ranks of an array of uint8."""
        if self.size == 1:
            return array
        from mpi4py import MPI

        out = np.empty_like(array)
        self._wait(self._comm.Iallreduce(array, out, MPI.BXOR))
        return out

    def merged(
        self, team: range, dump: Callable[[], list[np.ndarray]],
        merge: Callable[[list[np.ndarray]], None],
    ) -> bool:  # fmt: skip
        """Merge what the ranks of a team hold, two and two; True on its first, who has it all.

        A rank's neighbours stand for neighbouring parts of the work, and stay neighbours.
        """
        place, step = self.rank - team.start, 1
        while step < len(team):
            if place % (2 * step):
                self.send(dump(), self.rank - step)
                return False
            if place + step < len(team):
                merge(self.receive(self.rank + step))
            step *= 2
        return True

    def send(self, arrays: Iterable[np.ndarray], to: int) -> None:
        """Send arrays to a rank, which calls `receive`."""
        arrays = [np.asarray(array, order="C") for array in arrays]
        text = np.frombuffer(describe_arrays(arrays).encode(), np.uint8)
        for part in (np.array([text.nbytes], np.int64), text, *map(raw_bytes, arrays)):
            self._wait(self._comm.Isend(part, to, _DATA))

    def receive(self, source: int) -> list[np.ndarray]:
        """The arrays that a rank sends."""
        length = np.empty(1, np.int64)
        self._wait(self._comm.Irecv(length, source, _DATA))
        text = np.empty(int(length[0]), np.uint8)
        self._wait(self._comm.Irecv(text, source, _DATA))
        arrays = allocate_arrays(text.tobytes().decode())
        for array in arrays:
            self._wait(self._comm.Irecv(raw_bytes(array), source, _DATA))
        return arrays


def _pause(began: float) -> None:
    """Sleep between two looks at a request: the longer it takes, the longer."""
    waited = time.monotonic() - began
    time.sleep(min(max(waited / 8, _SHORTEST_SECONDS), _SHORT_SECONDS))


def _encoded(error: ShardwiseError) -> np.ndarray:
    text = str(error).encode("utf-8", "surrogateescape")
    if len(text) > _MOST_TEXT:
        text = text[:_MOST_TEXT] + " …".encode()
    return np.frombuffer(bytes([error.exit_code]) + text, np.uint8)


def _decoded(raw: np.ndarray) -> ShardwiseError:
    code, text = int(raw[0]), raw[1:].tobytes().decode("utf-8", "replace")
    return of_code(code, text)
