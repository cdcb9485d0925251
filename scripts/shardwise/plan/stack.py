"""A stack of matrices, read from the files that the plan names, each as it was planned."""

import math
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardwise.errors import InputError, IntegrityError, changed
from shardwise.files import remote
from shardwise.files.checksum import raw_bytes
from shardwise.files.extents import Extent, OpenFiles
from shardwise.files.formats import registry
from shardwise.files.lookup import ZARR_METADATA, Status, file_of
from shardwise.files.npy import Header, read_matrices
from shardwise.files.paths import for_bash
from shardwise.plan import memory
from shardwise.plan.config import Settings
from shardwise.plan.plan import Source, between


@dataclass(frozen=True)
class Stack:
    """A whole input: N matrices of one shape ``(m, k)`` and one dtype, over one file or many."""

    sources: tuple[Source, ...]
    matrices: int
    shape: tuple[int, int]
    dtype: str
    decoded: int = 0  # bytes that a task needs to decode chunks; 0: there are none
    must_copy: bool = False  # whether an array cannot be read in place
    why_copied: str = ""  # why an array is better copied; empty if none is
    unwritten: str = ""  # how many chunks are missing, and what they count as


class InputFiles:
    """The input files that a stage reads, with their identities before the first byte was read."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}

    def note(self, path: str, identity: str) -> None:
        """Note a file that is going to be read; refuse it if it has changed since it was noted."""
        if self._first.setdefault(path, identity) != identity:
            raise changed(path)

    def compare(self, path: str, status: Status) -> None:
        """Refuse a file that has changed since it was noted; serves as `extents.Opened`."""
        if path in self._first:
            self.note(path, status.identity)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """A context for all reads: a change, which may also cause a failure, is told at its end."""
        try:
            yield
        except Exception:
            self._compare_all()
            raise
        self._compare_all()

    def _compare_all(self) -> None:
        for path in list(self._first):
            try:
                if not (remote.is_url(path) or path.endswith(ZARR_METADATA)):
                    # NFS caches the status of a file for seconds, but revalidates it on open.
                    OpenFiles(self.compare).get(path)
                elif not path.endswith(".npy"):  # each range of a .npy object was compared
                    self.compare(path, registry.status_of(path))
            except (FileNotFoundError, NotADirectoryError) as error:  # it has disappeared
                raise changed(path) from error


# A file, its header, and bytes of the stack: the file's first, and begin and end of the part.
_Part = tuple[str, Header, int, int, int]


class StackReader:
    """Reads matrices of a stack, from any thread; IntegrityError if a file is not as planned.

    It notes in ``inputs`` the files that it reads, except those that a receipt vouches for.
    """

    def __init__(
        self, sources: Iterable[Source], shape: tuple[int, int], dtype: str,
        inputs: InputFiles | None = None,
    ) -> None:  # fmt: skip
        self.inputs = inputs or InputFiles()
        self._sources = sorted(sources, key=lambda source: source.first)
        self._shape, self._dtype = shape, np.dtype(dtype)
        self.matrix_bytes = self._dtype.itemsize * shape[0] * shape[1]
        self._header: tuple[str, Header] | None = None
        self._converting = threading.Lock()
        self._blocks: list[tuple[int, np.ndarray]] = []
        self._space = np.empty(0, self._dtype)

    def extents(self, low: int, high: int) -> list[Extent] | None:
        """Where bytes lie in files, little-endian in C order; None if they must be converted."""
        parts = self._parts(low, high)
        if any(h.chunk or h.reordered for _, h, *_ in parts):
            return None
        return [
            (path, h.offset + begin - first, end - begin) for path, h, first, begin, end in parts
        ]

    def read_into(self, files: OpenFiles, view: np.ndarray, low: int) -> None:
        """Fill a buffer with bytes of the stack from ``low`` on, little-endian in C order."""
        high = low + view.nbytes
        if (extents := self.extents(low, high)) is not None:
            for path, offset, nbytes in extents:
                files.get(path).read_at(offset, view[:nbytes])
                view = view[nbytes:]
            return
        parts = self._parts(low, high)
        with self._converting:  # one thread at a time
            for part in parts:
                while low < part[-1]:
                    begin, block = self._block(*part, low)
                    taken = block[low - begin :][: part[-1] - low]
                    np.copyto(view[: taken.nbytes], taken)
                    low, view = low + taken.nbytes, view[taken.nbytes :]

    def _block(
        self, path: str, header: Header, origin: int, _: int, end: int, at: int
    ) -> tuple[int, np.ndarray]:
        """A converted block that holds byte ``at`` of a part, and the byte at which it begins."""
        for begin, block in self._blocks:
            if begin <= at < begin + block.nbytes:
                return begin, block
        size, (rows, columns) = self.matrix_bytes, self._shape
        most, height = converted_block(header)
        first, last = (at - origin) // size, -(-(end - origin) // size)
        top = (at - origin) % size // (size // rows) // height * height
        if header.chunk:
            first, last = first // most * most, header.matrices
        shape = min(most, last - first), min(height, rows - top), columns
        del self._blocks[: len(self._blocks) - bool(header.chunk)]  # two decoded ones are kept
        if header.chunk or self._space.size < math.prod(shape):
            # Otherwise the allocator would keep the memory of one such block for every thread.
            self._space = np.empty(0, self._dtype)
            self._space = np.empty(math.prod(shape), self._dtype)
        out, stop = self._space[: math.prod(shape)].reshape(shape), first + shape[0]
        if header.chunk:
            out[:] = registry.read_matrices(path, (first, stop), (top, top + shape[1]))
        else:
            read_matrices(path, header, first, stop, out, top, self.inputs.compare)
        begin = origin + first * size + top * (size // rows)
        self._blocks.append((begin, out.reshape(-1).view(np.uint8)))
        return self._blocks[-1]

    def _parts(self, low: int, high: int) -> list[_Part]:
        """The files that hold some bytes, checked, in the order of the stack."""
        size, parts = self.matrix_bytes, list[_Part]()
        for source in between(self._sources, low // size, -(-high // size)):
            origin = source.first * size
            begin, end = max(low, origin), min(high, origin + source.count * size)
            header = self._checked_header(source)
            path = source.path if header.chunk else file_of(source.path)
            parts.append((path, header, origin, begin, end))
        assert sum(end - begin for *_, begin, end in parts) == high - low
        return parts

    def _checked_header(self, source: Source) -> Header:
        """The header of a file in the plan; IntegrityError if the file is not the planned one."""
        latest = self._header  # read once: another thread may replace it at any time
        if latest is not None and latest[0] == source.path:
            return latest[1]
        path, cure = source.path, "start the run again"
        if not source.identity:  # our own copy
            cure = f"rm {for_bash(Path(path).with_suffix('.json'))}, then {cure}"
        try:
            header, status = registry.read_header_and_status(path)
        except (OSError, InputError) as error:
            raise IntegrityError(f"{path} cannot be read any more: {error}; {cure}") from error
        # What the synthetic stack is made from is no identity of a file; a copy has none either.
        planned = source.identity if source.identity[:1].isdigit() else status.identity
        found = header.shape[-2:], header.native, status.identity
        if found != (self._shape, self._dtype, planned):
            raise IntegrityError(f"{path} has changed since the plan was made; {cure}")
        if source.identity:
            self.inputs.note(file_of(path), status.identity)
        self._header = path, header
        return header


def converted_block(header: Header) -> tuple[int, int]:
    """How many matrices, and rows of each, are converted at once: all rows, or some of one matrix.

    They make up whole chunks, if these fit; without chunks they make up `memory.STEP_BYTES`.
    """
    rows, row = header.shape[-2], header.shape[-1] * header.dtype.itemsize
    (deep, tall, _), matrix = (1, *(header.chunk or (1, 1)))[-3:], rows * row
    if matrix > memory.CONVERTED_BYTES:
        most = max(1, memory.CONVERTED_BYTES // row)
        return 1, max(1, most // tall * tall or most)
    if not header.chunk:
        return -(-memory.STEP_BYTES // matrix), rows
    if deep * matrix > memory.CONVERTED_BYTES:  # then a chunk is decoded several times
        return memory.CONVERTED_BYTES // matrix, rows
    return deep * max(1, 2 * memory.STEP_BYTES // (deep * matrix)), rows


def decoded_bytes(header: Header) -> int:
    """Bytes of two decoded blocks, and of the chunks that are being decoded."""
    item, block = header.dtype.itemsize, math.prod(converted_block(header)) * header.shape[-1]
    return item * (2 * block + 2 * max(block, memory.DECODERS * math.prod(header.chunk)))


def synthetic_matrix(seed: int, index: int, dim: int, dtype: np.dtype) -> np.ndarray:
    """Matrix ``index`` of the synthetic stack, shape ``(dim, dim)``."""
    random = np.random.default_rng([seed, index])
    if dtype.kind in "iu":
        return random.integers(-9, 9, (dim, dim), endpoint=True).astype(dtype)
    real = random.standard_normal((dim, dim))
    if dtype.kind == "c":
        return (real + 1j * random.standard_normal((dim, dim))).astype(dtype)
    return real.astype(dtype)


def first_rows(
    settings: Settings, stack: Stack, weights: np.ndarray | None, most: int
) -> np.ndarray:
    """Rows ``(n, k)`` among the ``most`` that follow where the first matrix that counts begins.

    Matrices of weight 0 are left out, unless all are. A synthetic stack need not be on the disk.
    """
    (height, width), dtype = stack.shape, np.dtype(stack.dtype)
    first = 0 if weights is None else int(np.argmax(weights != 0))
    stop = min(first + -(-most // height), stack.matrices)
    if settings.input is None:
        seed = settings.synthetic["seed"]
        matrices = [synthetic_matrix(seed, place, height, dtype) for place in range(first, stop)]
        rows = np.concatenate(matrices)[:most]
    else:
        rows = np.empty((min(most, (stop - first) * height), width), dtype)
        reader = StackReader(stack.sources, stack.shape, stack.dtype)
        files = OpenFiles(reader.inputs.compare)
        reader.read_into(files, raw_bytes(rows), first * reader.matrix_bytes)
    if weights is not None and weights.any():
        rows = rows[np.repeat(weights[first:stop] != 0, height)[: len(rows)]]
    return rows
