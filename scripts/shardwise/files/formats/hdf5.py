"""Datasets of HDF5 files, by h5py: contiguous ones are read as bytes, chunked ones decoded."""

import math
import operator
import os
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from shardwise.errors import InputError, IntegrityError, ShardwiseError
from shardwise.files.formats import names, streams
from shardwise.files.npy import Header, checked_descr
from shardwise.units import MIB

_SHUFFLE, _FLETCHER32 = 2, 3  # numbers of filters in the HDF5 format
_BITSHUFFLE = 32008
_COMPRESSED = {  # filters whose decoded bytes can be counted
    1: "zlib", 307: "bz2", 32000: "lzf", 32001: "blosc", 32004: "lz4", _BITSHUFFLE: "lz4",
    32015: "zstd",
}  # fmt: skip
_CHECKSUM_BYTES = 4
_AT_ONCE = 4  # chunks that are looked at together


def header(path: str, inside: str) -> Header:
    """Shape, type and place of a dataset; InputError if it cannot be read."""
    with _opened(path) as file:
        dataset = _dataset(file, path, inside)
        where = Path(f"{path}:{inside}")
        if dataset.external:  # a change of those files would go unnoticed
            raise _leads_out(where, f"stored in other files, as in {dataset.external[0][0]!r:.99}")
        if dataset.shape is None:
            raise InputError(f"{where}: holds no array")
        descr = checked_descr(dataset.dtype.str, where)
        if dataset.is_virtual:
            parts = _gathered(dataset, path, where)
            return Header(dataset.shape, descr, parts=parts)
        if dataset.id.get_storage_size() == 0:
            raise InputError(f"{where}: nothing has been written to it; write the numbers")
        place = int(h5py.h5o.get_info(dataset.id).addr)  # the same, whatever name led to it
        if dataset.chunks:
            _refuse_filters(dataset, where)
            _refuse_odd_sizes(dataset, where)
            written = _count_chunks(dataset, where)
            return Header(dataset.shape, descr, place=place, chunk=dataset.chunks, **written)
        offset = _offset(file, dataset, path)
        row = (*(1,) * (len(dataset.shape) - 1), *dataset.shape[-1:]) if offset is None else ()
        return Header(dataset.shape, descr, offset=offset or 0, place=place, chunk=row)


def read(path: str, inside: str, matrices: tuple[int, int], rows: tuple[int, int]) -> np.ndarray:
    """Rows of some matrices; HDF5 decompresses each chunk that they lie in once."""
    with _opened(path, IntegrityError) as file:
        dataset = _dataset(file, path, inside)
        part = (slice(*matrices), slice(*rows), slice(0, dataset.shape[-1]))[-dataset.ndim :]
        _refuse_odd_streams(dataset, path, part)
        block: np.ndarray = dataset[part]
        return block.reshape(-1, *block.shape[-2:])


@contextmanager
def _opened(path: str, fault: type[ShardwiseError] = InputError) -> Iterator[Any]:
    """An open file; any error of the HDF5 library is raised as ``fault``."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            yield file
    except (OSError, LookupError, RuntimeError, ValueError, TypeError, zlib.error) as error:
        raise fault(f"{path} cannot be read as HDF5: {error!s:.200}") from error


def _dataset(file: Any, path: str, inside: str) -> Any:
    """The dataset of a name; refused if it lies in another file: a change would go unnoticed."""
    node = file.get(inside or "/")
    if not isinstance(node, h5py.Dataset):
        raise names.choose_one(path, inside, _datasets(file))
    if node.file.filename != file.filename:
        raise _leads_out(f"{path}:{inside}", f"a link to {node.file.filename}")
    return node


def _datasets(file: Any) -> list[str]:
    found: list[str] = []
    file.visititems(
        lambda name, node: found.append(f"/{name}") if isinstance(node, h5py.Dataset) else None
    )
    return found


def _gathered(dataset: Any, path: str, where: Path) -> tuple[tuple[str, int], ...]:
    """The arrays that a virtual dataset puts one after the other, and how many matrices each has.

    Parts of arrays are refused, and so are gaps, for which the library would read fill values.
    """
    parts, reached = [], 0
    try:
        for own in sorted(dataset.virtual_sources(), key=lambda v: v.vspace.get_select_bounds()):
            (first, *_), (last, *_) = own.vspace.get_select_bounds()
            count, space = last + 1 - first, own.src_space
            points = count * math.prod(dataset.shape[1:])
            every = space.get_select_type() == h5py.h5s.SEL_ALL or math.prod(space.shape) == points
            if first != reached or own.vspace.get_select_npoints() != points or not every:
                raise ValueError
            file = path if own.file_name == "." else Path(path).parent / own.file_name
            parts.append((f"{file}:{own.dset_name}", count))
            reached = last + 1
        if len(dataset.shape) != 3 or reached != len(dataset):
            raise ValueError
    except (RuntimeError, ValueError) as error:  # the former for a source of unlimited length
        what = "a virtual dataset, but not of whole arrays (N, m, k) one after the other"
        raise _leads_out(where, what) from error
    return tuple(parts)


def _leads_out(where: Path | str, what: str) -> InputError:
    return InputError(
        f"{where}: is {what}; name the file that holds the numbers, or copy them into one dataset"
    )


def _filters(dataset: Any) -> list[int]:
    """The numbers of the filters that chunks went through, in order; loads plugins if needed."""
    plist = dataset.id.get_create_plist()
    found = [plist.get_filter(i) for i in range(plist.get_nfilters())]
    if not all(h5py.h5z.filter_avail(number) for number, *_ in found):
        with suppress(ImportError):
            import hdf5plugin  # noqa: F401 (it brings filters of detectors)
    # Bitshuffle without compression keeps the number of bytes, as shuffle does.
    return [
        _SHUFFLE if number == _BITSHUFFLE and not any(values[4:5]) else number
        for number, _, values, _ in found
    ]


def _refuse_filters(dataset: Any, where: Path) -> None:
    """Refuse filters that are not installed, or whose decoded size cannot be checked here.

    If a chunk decodes to too few bytes, the library reads whatever lies behind them in memory.
    """
    filters = _filters(dataset)
    first = next((i for i, n in enumerate(filters) if n in _COMPRESSED), len(filters))
    odd = {*filters[:first]} - {_SHUFFLE, _FLETCHER32} or {*filters[first + 1 :]} - {_FLETCHER32}
    if odd:
        raise InputError(
            f"{where}: its chunks went through the HDF5 filters {filters}; allowed are shuffle, "
            "then gzip, LZF or (with hdf5plugin) bitshuffle, LZ4, Blosc, bzip2 or zstd, then "
            f"Fletcher32, as the size of a chunk decoded by filter {min(odd)} cannot be checked "
            "here. Write the file again: h5repack -f GZIP=4 IN OUT"
        )
    if absent := [number for number in filters if not h5py.h5z.filter_avail(number)]:
        raise InputError(
            f"{where}: its chunks went through filter {absent[0]}, which is not installed: "
            "pip install hdf5plugin on every node, or write the file again with gzip "
            "(h5repack -f GZIP=4 IN OUT)"
        )


def _count_chunks(dataset: Any, where: Path) -> dict[str, Any]:
    """The number of chunks, how many of them are missing, and what the library reads for those."""
    chunks = math.prod(-(-n // c) for n, c in zip(dataset.shape, dataset.chunks, strict=True))
    missing = max(0, chunks - dataset.id.get_num_chunks())
    plist = dataset.id.get_create_plist()
    no_value = plist.fill_value_defined() == h5py.h5d.FILL_VALUE_UNDEFINED
    if missing and (no_value or plist.get_fill_time() == h5py.h5d.FILL_TIME_NEVER):
        raise names.no_value(where, missing, chunks)
    return {"chunks": chunks, "missing": missing, "fill": str(dataset.fillvalue)}


def _chunk_bytes(dataset: Any) -> int:
    return int(math.prod(dataset.chunks) * dataset.id.get_type().get_size())


def _refuse_odd_sizes(dataset: Any, where: Path) -> None:
    """Refuse an uncompressed chunk of the wrong size, or a compressed one that is far too large."""
    filters, nbytes = _filters(dataset), _chunk_bytes(dataset)

    def look(chunk: Any) -> Any:
        used = [f for i, f in enumerate(filters) if not chunk.filter_mask >> i & 1]
        whole = nbytes + _CHECKSUM_BYTES * used.count(_FLETCHER32)
        # A writer may leave chunks at the edge unfiltered, without saying so in the mask.
        plain = {_SHUFFLE, _FLETCHER32}.issuperset(used)
        odd = chunk.size not in (nbytes, whole) if plain else chunk.size > 2 * whole + MIB
        return (chunk.chunk_offset, chunk.size, whole) if odd else None  # a tuple ends the search

    if odd := dataset.id.chunk_iter(look):
        raise InputError(
            f"{where} is damaged: its chunk at {odd[0]} has {odd[1]} bytes, not {odd[2]}; copy or "
            "write it again"
        )


def _refuse_odd_streams(dataset: Any, path: str, part: tuple[slice, ...]) -> None:
    """Refuse a compressed chunk of some part that does not decode to the bytes of a chunk."""
    filters = _filters(dataset) if dataset.chunks else []
    at = next((i for i, number in enumerate(filters) if number in _COMPRESSED), None)
    if at is None:
        return
    nbytes, kind = _chunk_bytes(dataset), _COMPRESSED[filters[at]]
    whole = nbytes + _CHECKSUM_BYTES * filters[:at].count(_FLETCHER32)

    def check(origin: tuple[int, ...]) -> None:
        if dataset.id.get_chunk_info_by_coord(origin).byte_offset is None:
            return  # the chunk was never written
        mask, stored = dataset.id.read_direct_chunk(origin)
        raw = stored[: len(stored) - _CHECKSUM_BYTES * filters[at:].count(_FLETCHER32)]
        ends = map(operator.add, origin, dataset.chunks)
        edge = any(map(operator.gt, ends, dataset.shape)) and len(stored) == nbytes
        if not (mask >> at & 1 or edge) and streams.COUNTED[kind](raw, whole) != whole:
            raise IntegrityError(
                f"{path}: the chunk of {dataset.name} at {origin} does not decode to {whole} "
                "bytes; copy or write it again"
            )

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        origins = (
            tuple(s.start // n * n for s, n in zip(own, dataset.chunks, strict=True))
            for own in dataset.iter_chunks(part)
        )
        for _ in pool.map(check, origins):
            pass


def _offset(file: Any, dataset: Any, path: str) -> int | None:
    """Byte at which the elements begin if they lie in the file as one block; else None."""
    offset = dataset.id.get_offset()
    # An enumeration, or a number that fills its bytes in part, is converted by the library.
    plain = dataset.id.get_type().equal(h5py.h5t.py_create(dataset.dtype))
    if offset is None or file.userblock_size or not plain:
        return None
    nbytes, size = math.prod(dataset.shape) * dataset.dtype.itemsize, os.path.getsize(path)
    if dataset.id.get_storage_size() != nbytes or offset + nbytes > size:
        raise InputError(
            f"{path} is truncated or damaged: {dataset.name} has {nbytes} bytes from byte "
            f"{offset} on, but the file has {size}; copy or write it again"
        )
    return int(offset)
