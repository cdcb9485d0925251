"""Arrays of Zarr stores, version 2 and 3, by zarr."""

import asyncio
import json
import math
import operator
import os
import re
from typing import Any

import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import LocalStore, MemoryStore, StorePath
from zarr.storage._utils import _normalize_byte_range_index

from shardwise.errors import InputError, IntegrityError, ShardwiseError, changed
from shardwise.files import remote
from shardwise.files.formats import zarr_files
from shardwise.files.npy import Header, checked_descr

zarr.config.set({"async.concurrency": 4})  # chunks that are decoded at once; for all threads


class ListedObjects(MemoryStore):  # type: ignore[misc] # zarr has no types here
    """Objects by their names below an array's folder, as `zarr_files.listed` has them.

    zarr reads fill values for what is not found: reading an object that has gone fails instead.
    """

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        """The bytes of an object, or a range of them; None if it was not listed."""
        listed = self._store_dict.get(key)
        if listed is None:
            return None
        begin, end = _normalize_byte_range_index(range(listed.size), byte_range)
        take = remote.Object(listed.url, listed).take
        try:
            raw = await asyncio.to_thread(take, max(0, begin), end)
        except FileNotFoundError:
            raise changed(listed.url) from None
        return (prototype or default_buffer_prototype()).buffer.from_bytes(raw)


def header(path: str, inside: str) -> Header:
    """Shape, type and chunks of an array; InputError if it cannot be read.

    For a chunk that it does not find, as after a copy that broke off, zarr reads fill values. A
    shard counts as one chunk: its index says which inner chunks were left out on purpose.
    """
    array, folder = _opened(path), os.path.dirname(path)
    shape, chunk = (tuple(map(int, n)) for n in (array.shape, array.shards or array.chunks))
    if 0 in chunk:
        raise InputError(f"{path}: damaged Zarr metadata: chunks {chunk}; write the array again")
    grid = [-(-n // c) for n, c in zip(shape, chunk, strict=True)]
    key_of, keys = array.metadata.encode_chunk_key, [key for key, *_ in zarr_files.chunks(path)]

    def is_chunk(key: str) -> bool:
        numbers = tuple(map(int, re.findall("[0-9]+", key)))[-len(grid) :]
        inside = len(numbers) == len(grid) and all(map(operator.lt, numbers, grid))
        return inside and key_of(numbers) == key

    chunks, written, fill = math.prod(grid), sum(map(is_chunk, keys)), array.fill_value
    if written < chunks and (written < len(keys) or not written or fill is None):
        raise InputError(
            f"{folder}: {chunks - written:,} of {chunks:,} chunks are missing, its fill value is "
            f"{fill}, and {len(keys) - written} other files are there: {os.path.basename(path)} "
            f"gives chunks names such as {key_of((0,) * len(grid))}; write them, copy the store "
            "again, or correct their names"
        )
    return Header(
        shape, checked_descr(array.dtype, folder), chunk=chunk, chunks=chunks,
        missing=chunks - written, fill=str(fill),
    )  # fmt: skip


def read(path: str, inside: str, matrices: tuple[int, int], rows: tuple[int, int]) -> np.ndarray:
    """Rows of some matrices; zarr decodes each chunk that they lie in once."""
    array = _opened(path)
    try:
        selection = (slice(*matrices), slice(*rows))[-(array.ndim - 1) :]
        block = np.asarray(array[selection])
    except ShardwiseError:  # of a store of objects
        raise
    except Exception as error:  # each codec fails in its own way
        raise IntegrityError(
            f"{os.path.dirname(path)}: a chunk is damaged, in matrices {matrices[0]} to "
            f"{matrices[1] - 1}: {error!s:.200}; restore the store"
        ) from error
    return block.reshape(-1, *block.shape[-2:])


def _opened(path: str) -> Any:
    folder, known = os.path.dirname(path) or ".", None
    store: Any = LocalStore(folder, read_only=True)
    if remote.is_url(path):
        listed = zarr_files.listed(path)
        store, known = ListedObjects(listed), listed.get(os.path.basename(path))
        if known is None:
            raise changed(path)
    said = zarr_files.read_metadata(path, known)
    if '"pickle"' in json.dumps(said):
        raise InputError(f"{folder}: its codec pickle could run any code; write the array again")
    try:
        return zarr.Array.from_dict(StorePath(store), {"attributes": {}} | said)
    except Exception as error:  # damaged metadata makes it fail in many ways
        raise InputError(f"{path} cannot be read as Zarr: {error!s:.200}") from error
