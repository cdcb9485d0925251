"""Every reader of a file that others may have written, and what must hold for any bytes in it.

A reader returns what is right, or raises one of the project's own errors, which names the file. It
takes no memory that the file's size does not justify, writes nothing, starts nothing, and ends.
"""

import io
import itertools
import shutil
import signal
import sys
import tracemalloc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from types import FrameType, SimpleNamespace
from typing import Any

import h5py
import hdf5plugin  # noqa: F401 (else the reader under test would load it, for a damaged filter)
import numpy as np
import safetensors.numpy
import zarr
from shardwise.errors import InputError, IntegrityError
from shardwise.files import npy
from shardwise.plan import sources
from shardwise.plan.stack import StackReader

from tests import factories
from tests.hostile.mutate import MOST_BYTES, mutated

MOST_MEMORY = 24 << 20  # that a reader of a file of 64 KiB may take, whatever stands in it
SECONDS = 60  # of the CPU; then a reader counts as hanging: most take a thousandth of one

_DEEDS = (
    "exec", "os.exec", "os.posix_spawn", "os.system", "os.fork", "subprocess.Popen",
    "pickle.find_class", "ctypes.dlopen", "socket.connect", "os.remove", "os.rename",
    "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "shutil.rmtree",
)  # fmt: skip


class Hang(BaseException):
    """A reader does not come to an end."""


class Reader:
    """One kind of file, and its reader.

    `prepare` sets ``file``, and ``seeds`` if there are several; `read` calls the reader under test,
    and `right` asserts that what it found is right.
    """

    file: Path
    seeds: list[bytes] | None = None
    memory = MOST_MEMORY
    refuses: tuple[type[Exception], ...] = (InputError, IntegrityError)

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind = folder, kind
        self.prepare()
        self.seeds = self.seeds or [self.file.read_bytes()]

    def place(self, raw: bytes) -> None:
        """Put a case where it will be read."""
        self.file.write_bytes(raw)

    def case(self, random: Random) -> bytes:
        return mutated(random.choice(self.seeds), random, self.seeds)[:MOST_BYTES]

    def check(self, raw: bytes) -> bool:
        """Read a case; whether it was accepted."""
        self.place(raw)
        try:
            with _guarded(self.memory):
                found = self.read()
        except self.refuses as error:
            told = str(error)
            assert self.file.name in told, f"names no file: {told}"
            assert len(told) <= 3000, f"a message of {len(told)} letters: {told:.60}"
            return False
        self.right(found, raw)
        return True


_watch = SimpleNamespace(deeds=None)


@contextmanager
def _guarded(memory: int) -> Iterator[None]:
    """Limit a reader's time; assert afterwards that it took little memory, and did no harm."""
    deeds: list[tuple[str, ...]] = []
    tracemalloc.start()
    previous = signal.signal(signal.SIGVTALRM, _ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    _watch.deeds = deeds
    try:
        with warnings.catch_warnings(action="ignore", category=SyntaxWarning):
            yield
    finally:
        _watch.deeds = None
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)
        taken = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert not deeds, f"does {deeds}"
        assert taken <= memory, f"takes {taken >> 20} MiB"


def _ring(signum: int, frame: FrameType | None) -> None:
    raise Hang(f"no end after {SECONDS} s")


def _hook(event: str, words: tuple[Any, ...]) -> None:
    """Record what no reader may do."""
    if _watch.deeds is None:
        return
    target = words[0] if words else ""
    code = getattr(target, "co_filename", "")  # of a library that is imported late
    own = not code.startswith((sys.prefix, sys.base_prefix, "<frozen"))
    writes = event == "open" and {*"wax+"} & {*(words[1] or "")}
    if writes or (event in _DEEDS and own):
        _watch.deeds.append((event, *map(str, words[:2])))


sys.addaudithook(_hook)


class Header(Reader):
    """The header of a ``.npy`` file, and the elements after it."""

    def prepare(self) -> None:
        self.file, self.seeds = self.folder / "a.npy", []
        arrays = (("<f4", (2, 2, 2), "C"), (">c16", (3, 2), "F"), ("|i1", (0, 3), "C"))
        for version, (descr, shape, order) in itertools.product((1, 2, 3), arrays):
            raw = io.BytesIO()
            array = np.asarray(np.arange(np.prod(shape)).reshape(shape), descr, order)
            np.lib.format.write_array(raw, array, (version, 0))
            self.seeds.append(raw.getvalue())

    def case(self, random: Random) -> bytes:
        raw = super().case(random)
        if random.randrange(3) or len(raw) < 12 or raw[6] not in (1, 2, 3):
            return raw
        # A length that fits the text, and elements after it: else the length alone is refused.
        wide = 2 if raw[6] == 1 else 4
        text = raw[8 + wide : raw.rfind(b"}") + 1 or len(raw)][:65000] + b"\n"
        length = len(text).to_bytes(wide, "little")
        return raw[:8] + length + text + bytes(random.choice((0, 32, 96, 6)))

    def read(self) -> Any:
        header = npy.read_header(self.file)
        if len(header.shape) not in (2, 3) or 0 in header.shape:
            return header, None
        count = header.shape[0] if len(header.shape) == 3 else 1
        out = np.empty((count, *header.shape[-2:]), header.native)
        npy.read_matrices(self.file, header, 0, count, out)
        return header, out

    def right(self, found: Any, raw: bytes) -> None:
        header, elements = found
        expected = np.load(io.BytesIO(raw), allow_pickle=False, max_header_size=1 << 17)
        assert (expected.shape, expected.dtype) == (header.shape, header.dtype)
        if elements is not None:
            assert elements.tobytes() == np.ascontiguousarray(expected, header.native).tobytes()


class Foreign(Reader):
    """Arrays of another format: what its `library` reads otherwise is never accepted."""

    refuses = (InputError, IntegrityError, OSError)  # plans report the last with the file
    memory = 2 * MOST_MEMORY  # of two libraries
    array = factories.stack((3, 2, 2), "float64")
    input: str

    def read(self) -> Any:
        stack = sources.stack_of(factories.settings(input=self.input), self.folder / "none")
        if stack.matrices * stack.shape[0] * stack.shape[1] > 10_000:
            return stack, None  # a damaged shape may be huge, filled with default values
        return stack, factories.read(
            StackReader(stack.sources, stack.shape, stack.dtype), 0, stack.matrices
        )

    def right(self, found: Any, raw: bytes) -> None:
        stack, numbers = found
        if numbers is not None:
            expected = self.library()
            assert (stack.matrices, *stack.shape) == expected.shape
            assert stack.dtype == expected.dtype.name
            assert numbers.tobytes() == expected.astype(stack.dtype).tobytes()


class Hdf5(Foreign):
    """Files with one dataset: contiguous, compact, in chunks, big-endian."""

    def prepare(self) -> None:
        self.file, self.seeds = self.folder / "a.h5", []
        self.input = f"{self.file}:x"
        layouts = [
            {}, {"chunks": (1, 2, 2)}, {"chunks": (2, 1, 2), "compression": 1, "shuffle": True},
            {"chunks": (2, 2, 2), "fletcher32": True}, {"chunks": True, "maxshape": (None, 2, 2)},
        ]  # fmt: skip
        for version, options in itertools.product(("earliest", "latest"), layouts):
            with h5py.File(self.file, "w", libver=version) as file:
                file.create_dataset("x", data=self.array.astype(">f8"), **options)
            self.seeds.append(self.file.read_bytes())

    def library(self) -> np.ndarray:
        with h5py.File(self.file, "r") as file:
            return np.asarray(file["x"][()])


class Safetensors(Foreign):
    """Files of two tensors."""

    def prepare(self) -> None:
        self.file = self.folder / "a.safetensors"
        self.input = f"{self.file}:x"
        whole = safetensors.numpy.save({"x": self.array, "y": np.arange(5.0)})
        self.seeds = [whole, whole.replace(b'"y"', b'"x"')]

    def case(self, random: Random) -> bytes:
        raw = super().case(random)
        length, end = int.from_bytes(raw[:8], "little"), raw.rfind(b"}") + 1
        if random.randrange(2) and end > 8 and length != end - 8:
            raw = (end - 8).to_bytes(8, "little") + raw[8:]
        return raw

    def library(self) -> np.ndarray:
        return np.asarray(safetensors.numpy.load(self.file.read_bytes())["x"])


class Zarr(Foreign):
    """Stores of version 2 and 3: a case holds all files, separated by lines of zero bytes.

    Files that a case leaves out are whole.
    """

    mark = b"\0\0\0\n"

    def prepare(self) -> None:
        self.version = 2 if self.kind == "zarr2" else 3
        store = self.file = self.folder / "a.zarr"
        self.input = str(store)
        made = zarr.create_array(
            store, shape=self.array.shape, chunks=(1, 2, 2), dtype="f8", zarr_format=self.version,
            **({"shards": (3, 2, 2)} if self.version == 3 else {}),
        )  # fmt: skip
        made[:] = self.array
        self.paths = sorted(p for p in store.rglob("*") if p.is_file() and p.name != ".zattrs")
        self.whole = [path.read_bytes() for path in self.paths]
        self.seeds = [self.mark.join(self.whole)]

    def case(self, random: Random) -> bytes:
        parts = [*self.whole]
        at = random.randrange(len(parts))
        parts[at] = mutated(parts[at], random, parts)
        return self.mark.join(parts)

    def place(self, raw: bytes) -> None:
        parts = raw.split(self.mark)[: len(self.paths)]
        for path, part in zip(self.paths, parts + self.whole[len(parts) :], strict=True):
            path.write_bytes(part)

    def library(self) -> np.ndarray:
        return np.asarray(zarr.open_array(self.input, mode="r", zarr_format=self.version)[:])


READERS = {"header": Header, "hdf5": Hdf5, "safetensors": Safetensors, "zarr": Zarr, "zarr2": Zarr}


def reader(name: str, folder: Path) -> Reader:
    """Make a reader by its name; it reads each seed once, so that all late imports are done."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    made = READERS[name](folder, name)
    for seed in made.seeds:
        made.place(seed)
        with suppress(InputError, IntegrityError):
            made.read()
    return made
