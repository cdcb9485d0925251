"""The files or objects of Zarr arrays, found without zarr; the metadata stand for an array."""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from shardwise.errors import InputError
from shardwise.files import remote, small
from shardwise.files.formats import names
from shardwise.files.lookup import refuse_closed

_NO_CHUNKS = (*names.ZARR_METADATA, ".zattrs")
_LISTED: dict[str, dict[str, remote.Status]] = {}


def metadata_of(store: str, inside: str) -> str:
    """The metadata file or object of an array in a store; InputError if there is none."""
    folder = "/".join([store, *(part for part in inside.split("/") if part not in ("", "."))])
    for path in (f"{folder}/{name}" for name in names.ZARR_METADATA):
        if read_metadata(path).get("node_type") == "array":
            return path
    found = (path for name in names.ZARR_METADATA for path in sorted(Path(store).rglob(name)))
    arrays = [path for path in found if read_metadata(str(path)).get("node_type") == "array"]
    if arrays:
        listed = [path.parent.relative_to(store).as_posix() for path in arrays]
        raise names.choose_one(store, inside, listed)
    raise InputError(
        f"{folder}: is not a Zarr array; name one, such as run.zarr:group/array, or a .npy file"
    )


def read_metadata(path: str, known: remote.Status | None = None) -> dict[str, Any]:
    """What a metadata file or object says, with its ``node_type``; nothing if there is none."""
    try:
        if remote.is_url(path):
            raw: Any = remote.Object(path, known).take(0, small.MOST_BYTES)
        else:
            raw = small.read(path) if os.path.isfile(path) else None
    except FileNotFoundError:
        raw = None
    try:
        # A TypeError unless it is an object. Version 2 has a file of its own for each type.
        return {"node_type": "array", **json.loads(raw)} if raw is not None else {}
    except (ValueError, TypeError, RecursionError) as error:
        words = f"damaged Zarr metadata: {error!s:.200}; copy or write the array again"
        raise InputError(f"{path}: {words}") from error


def status_of_objects(url: str) -> remote.Status:
    """The bytes of an array in a store, and a digest that changes when any of its objects does."""
    files = [(key, own.size, own.etag) for key, own in _list(url).items()]
    return remote.Status(url, sum(size for _, size, _ in files), _digest(files))


def listed(url: str) -> dict[str, remote.Status]:
    """The objects of an array in a store, by name, as they were when they were last listed."""
    found = _LISTED.get(url)
    return _list(url) if found is None else found


def _list(url: str) -> dict[str, remote.Status]:
    if len(_LISTED) >= 64:  # arrays may have many objects
        _LISTED.clear()
    _LISTED[url] = found = remote.below(os.path.dirname(url))  # another thread may clear the table
    return found


def digest_of_chunks(path: str) -> str:
    """Changes when a chunk may have changed; empty unless the path is a Zarr array on a disk."""
    on_disk = path.endswith(names.ZARR_METADATA) and not remote.is_url(path)
    return _digest(chunks(path)) if on_disk else ""


def _digest(files: Iterable[tuple[str, int, str]]) -> str:
    lines = sorted("\0".join(map(str, file)) for file in files)
    return small.checksum("\n".join(lines).encode(errors="replace"), 8)


def chunks(path: str) -> Iterator[tuple[str, int, str]]:
    """Name, bytes and version of each file (behind links too) or object but the metadata."""
    if remote.is_url(path):
        for key, (_, size, etag) in listed(path).items():
            if os.path.basename(key) not in _NO_CHUNKS:
                yield key, size, etag
        return
    top = os.path.dirname(path) or "."
    for folder, _, files in os.walk(top, onerror=refuse_closed, followlinks=True):
        for file in (os.path.join(folder, name) for name in files if name not in _NO_CHUNKS):
            s = os.stat(file)
            yield os.path.relpath(file, top), s.st_size, f"{s.st_mtime_ns}\0{s.st_ctime_ns}"
