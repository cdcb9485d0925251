"""Arrays of Zarr stores, version 2 and 3, by zarr. The metadata file stands for the array."""

import json
import math
import operator
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.errors import InputError, IntegrityError, ShardwiseError, changed
from shardwise.files import remote, small
from shardwise.files.formats import names
from shardwise.files.lookup import refuse_closed
from shardwise.files.npy import Header, checked_descr

_NO_CHUNKS = (*names.ZARR_METADATA, ".zattrs")
_LISTED: dict[str, dict[str, remote.Status]] = {}
"""The objects of each array in an object store, by the array's URL, as `_list` last found them."""
_MOST_LISTED = 64


def header(path: str, inside: str) -> Header:
    """Shape, type and chunks of an array; InputError if it cannot be read."""
    folder = os.path.dirname(path)
    array = _opened(path)
    descr = checked_descr(array.dtype.str, folder)
    shape, chunk = (tuple(map(int, n)) for n in (array.shape, array.shards or array.chunks))
    if 0 in chunk:
        raise InputError(f"{path}: damaged Zarr metadata: chunks {chunk}; write the array again")
    grid = [-(-n // c) for n, c in zip(shape, chunk, strict=True)]
    chunks, (written, other) = math.prod(grid), _look_for_chunks(path, array, grid)
    missing, key = chunks - written, array.metadata.encode_chunk_key((0,) * len(grid))
    if missing and (other or missing == chunks):
        named = f", and {other} is not one" if other else ""
        raise InputError(
            f"{folder}: {missing:,} of {chunks:,} chunks are missing{named}: "
            f"{os.path.basename(path)} gives them names such as {key}; write them, copy the store "
            "again, or correct their names"
        )
    if missing and array.fill_value is None:
        raise names.no_value(folder, missing, chunks)
    return Header(
        shape, descr, chunk=chunk, chunks=chunks, missing=missing, fill=str(array.fill_value)
    )  # fmt: skip


def _look_for_chunks(path: str, array: Any, grid: list[int]) -> tuple[int, str]:
    """How many chunks zarr finds by name; and a file that looks like a chunk, but is not one.

    For a chunk that it does not find, zarr reads fill values, though the chunk may be there under
    another name, as in a copy that broke off. A shard of Zarr counts as one chunk: its index says
    which of its inner chunks were left out on purpose.
    """
    written, other = 0, ""
    for key, *_ in _chunks(path):
        numbers = tuple(map(int, re.findall("[0-9]+", key)))[-len(grid) :]
        inside = len(numbers) == len(grid) and all(map(operator.lt, numbers, grid))
        if inside and array.metadata.encode_chunk_key(numbers) == key:
            written += 1
        elif re.search("[0-9]", os.path.basename(key)):
            other = key
    return written, other


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


def is_node(folder: Path) -> bool:
    """Whether a folder is an array or a group of Zarr, whatever its name."""
    return any((folder / name).is_file() for name in (*names.ZARR_METADATA, ".zgroup"))


def metadata_of(store: str, inside: str) -> str:
    """The metadata file or object of an array in a store; InputError if there is none."""
    parts = [part for part in inside.split("/") if part not in ("", ".")]
    for name in names.ZARR_METADATA:
        path = "/".join([store, *parts, name])
        if ".." not in parts and _node_type(path) == "array":
            return path
    if remote.is_url(store):
        raise InputError(
            f"{'/'.join([store, *parts])}: is not a Zarr array; name one, such as "
            "s3://bucket/run.zarr:group/array, or a .npy object, or a folder ending with /"
        )
    arrays = [
        path.parent.relative_to(store).as_posix()
        for name in names.ZARR_METADATA
        for path in sorted(Path(store).rglob(name))
        if _node_type(str(path)) == "array"
    ]
    raise names.choose_one(store, inside, arrays)


def _node_type(path: str) -> str:
    """What a metadata file or object describes, ``array`` or ``group``; empty if there is none."""
    try:
        there = remote.is_url(path) or os.path.isfile(path)
        return str(_metadata(path).get("node_type", "array")) if there else ""
    except FileNotFoundError:
        return ""


def status_of_objects(url: str) -> remote.Status:
    """The bytes of an array in a store, and a digest that changes when any of its objects does."""
    files = [(key, own.size, own.etag) for key, own in _list(url).items()]
    return remote.Status(url, sum(size for _, size, _ in files), _digest(files))


def _list(url: str) -> dict[str, remote.Status]:
    if len(_LISTED) >= _MOST_LISTED:
        _LISTED.clear()
    listed = _LISTED[url] = remote.below(os.path.dirname(url))
    return listed


def digest_of_chunks(path: str) -> str:
    """Changes when a chunk may have changed; empty unless the path is a Zarr array on a disk."""
    on_disk = path.endswith(names.ZARR_METADATA) and not remote.is_url(path)
    return _digest(_chunks(path)) if on_disk else ""


def _digest(files: Iterable[tuple[str, int, str]]) -> str:
    lines = sorted("\0".join(map(str, file)) for file in files)
    return small.checksum("\n".join(lines).encode(errors="replace"), 8)


def _chunks(path: str) -> Iterator[tuple[str, int, str]]:
    """Each file or object in an array's folder, except its metadata: name, bytes, and its version.

    Links are followed, as zarr does.
    """
    if remote.is_url(path):
        for key, (_, size, etag) in (_LISTED.get(path) or _list(path)).items():
            if os.path.basename(key) not in _NO_CHUNKS:
                yield key, size, etag
        return
    top = os.path.dirname(path) or "."
    for folder, _, files in os.walk(top, onerror=refuse_closed, followlinks=True):
        for file in (os.path.join(folder, name) for name in files if name not in _NO_CHUNKS):
            s = os.stat(file)
            yield os.path.relpath(file, top), s.st_size, f"{s.st_mtime_ns}\0{s.st_ctime_ns}"


def _metadata(path: str, known: remote.Status | None = None) -> dict[str, Any]:
    if remote.is_url(path):
        raw: Any = remote.Object(path, known).take(0, small.MOST_BYTES)
    else:
        raw = small.read(path)
    try:
        return {**json.loads(raw or b"")}  # a TypeError unless it is an object
    except (ValueError, TypeError, RecursionError) as error:
        words = f"damaged Zarr metadata: {error!s:.200}; copy or write the array again"
        raise InputError(f"{path}: {words}") from error


def _opened(path: str) -> Any:
    try:
        import zarr
        from zarr.storage import LocalStore, StorePath

        from shardwise.files.formats.zarr_objects import ListedObjects
    except ModuleNotFoundError as error:
        raise names.needs(os.path.dirname(path), error) from error
    zarr.config.set({"async.concurrency": 4})  # chunks that are decoded at once; for all threads
    folder, known = os.path.dirname(path) or ".", None
    store: Any = LocalStore(folder, read_only=True)
    if remote.is_url(path):
        listed = _LISTED.get(path) or _list(path)
        store, known = ListedObjects(listed), listed.get(os.path.basename(path))
        if known is None:
            raise changed(path)
    said = _metadata(path, known)
    if '"pickle"' in json.dumps(said):
        raise InputError(f"{folder}: its codec pickle could run any code; write the array again")
    try:
        return zarr.Array.from_dict(StorePath(store), {"attributes": {}} | said)
    except Exception as error:  # damaged metadata makes it fail in many ways
        cure = "; write it as a.astype('float32')" * ("bfloat16" in str(error))
        raise InputError(f"{path} cannot be read as Zarr: {error!s:.200}{cure}") from error
