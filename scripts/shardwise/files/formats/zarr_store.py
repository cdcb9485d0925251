"""Arrays of Zarr stores, version 2 and 3, by zarr; the metadata file or object names an array."""

import asyncio
import json
import math
import operator
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import LocalStore, MemoryStore, StorePath
from zarr.storage._utils import _normalize_byte_range_index

from shardwise.errors import InputError, IntegrityError, ShardwiseError, changed
from shardwise.files import remote, small
from shardwise.files.lookup import ZARR_METADATA, Status, choose_one, refuse_closed
from shardwise.files.npy import Header, checked_descr
from shardwise.units import MIB

zarr.config.set({"async.concurrency": 4})  # chunks that are decoded at once; for all threads

_MOST_METADATA = 64 * MIB  # that of a group may repeat that of all its arrays

_LISTED: dict[str, dict[str, Status]] = {}  # by address, what was listed last


class ListedObjects(MemoryStore):  # type: ignore[misc] # zarr has no types here
    """Objects by their names below an array's folder, as they were when they were listed.

    zarr reads fill values for what is not found: reading an object that has gone fails instead.
    """

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        """The bytes of an object, or a range of them; None if it was not listed."""
        listed = self._store_dict.get(key)
        if listed is None:
            return None
        begin, end = _normalize_byte_range_index(range(listed.size), byte_range)
        take = remote.Object(listed.place, listed).take
        try:
            raw = await asyncio.to_thread(take, max(0, begin), end)
        except FileNotFoundError:
            raise changed(listed.place) from None
        return (prototype or default_buffer_prototype()).buffer.from_bytes(raw)


def metadata_of(store: str, inside: str) -> str:
    """The metadata file or object of an array in a store; InputError if there is none."""
    folder = "/".join([store, *(part for part in inside.split("/") if part not in ("", "."))])

    def is_array(path: str) -> bool:
        return _read_metadata(path).get("node_type") == "array"

    for path in (f"{folder}/{name}" for name in ZARR_METADATA):
        if is_array(path):
            return path
    arrays = []
    for place, below, names in os.walk(store):
        for path in (os.path.join(place, name) for name in ZARR_METADATA if name in names):
            with suppress(InputError):  # it is damaged, but not the one that was asked for
                if is_array(path):
                    arrays.append(os.path.relpath(place, store))
                    below.clear()  # the folders of its chunks
    if arrays and arrays != ["."]:
        raise choose_one(store, inside, sorted(arrays))
    words = "is not a Zarr array; name one, such as run.zarr:group/array, or a .npy file"
    raise InputError(f"{folder}: {words}")


def status(path: str) -> Status:
    """The bytes of an array, and a digest that changes when any of its files or objects does."""
    found = _list(path)
    lines = sorted("\0".join([key, str(own.size), own.version]) for key, own in found.items())
    digest = small.checksum("\n".join(lines).encode(errors="replace"), 8)
    place = path if remote.is_url(path) else os.path.realpath(path)
    return Status(place, sum(own.size for own in found.values()), digest)


def _list(path: str) -> dict[str, Status]:
    """Size and version of each file (behind links too) or object of an array, by its name there."""
    top = os.path.dirname(path) or "."
    if remote.is_url(path):
        if len(_LISTED) >= 64:  # arrays may have many objects
            _LISTED.clear()
        _LISTED[path] = found = remote.below(top)
        return found
    found = {}
    for folder, _, files in os.walk(top, onerror=refuse_closed, followlinks=True):
        for file in (os.path.join(folder, name) for name in files if name != ".zattrs"):
            s = os.stat(file)
            version = f"{s.st_mtime_ns}\0{s.st_ctime_ns}"
            found[os.path.relpath(file, top)] = Status("", s.st_size, version)
    return found


def header(path: str, inside: str) -> Header:
    """Shape, type and chunks of an array; InputError if it cannot be read.

    For a chunk that it does not find, as after a copy that broke off, zarr reads fill values. A
    shard counts as one chunk: its index says which inner chunks were left out on purpose.
    """
    array, folder = _opened(path), os.path.dirname(path)
    shape, chunk = (tuple(map(int, n)) for n in (array.shape, array.shards or array.chunks))
    with _explained(path):
        if 0 in chunk:
            raise ValueError(f"its metadata says chunks of {chunk}")
        grid = [-(-n // c) for n, c in zip(shape, chunk, strict=True)]
    key_of, named = array.metadata.encode_chunk_key, _LISTED.get(path) or _list(path)
    keys = [key for key in named if not key.endswith((*ZARR_METADATA, ".zattrs"))]

    def is_chunk(key: str) -> bool:
        numbers = tuple(map(int, re.findall("[0-9]+", key)))[-len(grid) :]
        inside = len(numbers) == len(grid) and all(map(operator.lt, numbers, grid))
        return inside and key_of(numbers) == key

    chunks, written, fill = math.prod(grid), sum(map(is_chunk, keys)), array.fill_value
    if written < chunks and (written < len(keys) or not written or fill is None):
        raise InputError(
            f"{folder}: {chunks - written:,} of {chunks:,} chunks are missing, its fill value is "
            f"{fill}, and {len(keys) - written} other files are there: {os.path.basename(path)} "
            f"gives chunks names such as {key_of((0,) * len(grid))}; write the missing chunks, "
            "correct the names, or copy the store again"
        )
    return Header(
        shape, checked_descr(array.dtype, folder), chunk=chunk, chunks=chunks,
        missing=chunks - written, fill=str(fill),
    )  # fmt: skip


def read(path: str, inside: str, matrices: tuple[int, int], rows: tuple[int, int]) -> np.ndarray:
    """Rows of some matrices; zarr decodes each chunk that they lie in once."""
    array = _opened(path)
    selection = (slice(*matrices), slice(*rows))[-(array.ndim - 1) :]
    what = f"{os.path.dirname(path)}: a chunk of matrices {matrices[0]} to {matrices[1] - 1}"
    with _explained(what, IntegrityError):
        block = np.asarray(array[selection])
    return block.reshape(-1, *block.shape[-2:])


@contextmanager
def _explained(what: str, fault: type[ShardwiseError] = InputError) -> Iterator[None]:
    """Raise any error of zarr as ``fault``: damaged metadata, and each codec, fail in their way."""
    try:
        yield
    except ShardwiseError:  # of a store of objects
        raise
    except Exception as error:
        words = f"{what} cannot be read as Zarr: {error!s:.200}; copy or write it again"
        raise fault(words) from error


def _opened(path: str) -> Any:
    folder, known = os.path.dirname(path) or ".", None
    store: Any = LocalStore(folder, read_only=True)
    if remote.is_url(path):
        listed = _LISTED.get(path) or _list(path)
        store, known = ListedObjects(listed), listed.get(os.path.basename(path))
    said = _read_metadata(path, known)
    if '"pickle"' in json.dumps(said):
        raise InputError(f"{folder}: its codec pickle could run any code; write the array again")
    with _explained(path):
        return zarr.Array.from_dict(StorePath(store), {"attributes": {}} | said)


def _read_file(path: str) -> bytes | None:
    try:
        return small.read(path, _MOST_METADATA)
    except IntegrityError as error:  # it is too large
        raise InputError(f"{error}; name the array itself: run.zarr:group/array") from error


def _read_metadata(path: str, known: Status | None = None) -> dict[str, Any]:
    """What a metadata file or object says, with its ``node_type``; nothing if there is none."""
    try:
        if remote.is_url(path):
            raw: Any = remote.Object(path, known).take(0, _MOST_METADATA)
        else:
            raw = _read_file(path) if os.path.isfile(path) else None
    except FileNotFoundError:
        raw = None
    with _explained(path):
        # A TypeError unless it is an object. Version 2 has a file of its own for each type.
        known_type = {} if path.endswith("zarr.json") else {"node_type": "array"}
        return {**known_type, **json.loads(raw)} if raw is not None else {}
