"""Datasets of HDF5 files, by h5py: contiguous ones are read as bytes, chunked ones decoded."""

import math
import operator
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import h5py
import numpy as np

from shardwise.errors import InputError, IntegrityError, ShardwiseError
from shardwise.files.formats import names, streams
from shardwise.files.npy import Header, checked_descr
from shardwise.units import MIB

_SHUFFLE, _FLETCHER32, _BITSHUFFLE = 2, 3, 32008  # numbers of filters in the HDF5 format
_CHECKSUM_BYTES = 4
_COMPRESSED = {  # filters whose decoded bytes can be counted
    1: "zlib", 307: "bz2", 32000: "lzf", 32001: "blosc", 32004: "lz4", _BITSHUFFLE: "lz4",
    32015: "zstd",
}  # fmt: skip


def header(path: str, inside: str) -> Header:
    """Shape, type and place of a dataset; InputError if it cannot be read."""
    with _dataset(path, inside) as dataset:
        where = f"{path}:{inside}"
        descr = checked_descr(dataset.dtype, where)
        if dataset.id.get_storage_size() == 0:
            raise InputError(f"{where}: nothing has been written to it; write the numbers")
        place = int(h5py.h5o.get_info(dataset.id).addr)  # the same, whatever name led to it
        if chunk := dataset.chunks:
            _refuse_filters(dataset, where)
            chunks = math.prod(-(-n // c) for n, c in zip(dataset.shape, chunk, strict=True))
            missing, plist = chunks - dataset.id.get_num_chunks(), dataset.id.get_create_plist()
            unfilled = plist.fill_value_defined() == h5py.h5d.FILL_VALUE_UNDEFINED
            if missing > 0 and (unfilled or plist.get_fill_time() == h5py.h5d.FILL_TIME_NEVER):
                raise InputError(
                    f"{where}: {missing:,} of {chunks:,} chunks were never written, and no fill "
                    "value says what they hold; write them, or copy the array again"
                )
            written = {"chunks": chunks, "missing": max(0, missing), "fill": str(dataset.fillvalue)}
            return Header(dataset.shape, descr, place=place, chunk=chunk, **written)
        offset = _offset(dataset, where)
        row = (*(1,) * (len(dataset.shape) - 1), *dataset.shape[-1:]) if offset is None else ()
        return Header(dataset.shape, descr, offset=offset or 0, place=place, chunk=row)


def read(path: str, inside: str, matrices: tuple[int, int], rows: tuple[int, int]) -> np.ndarray:
    """Rows of some matrices; HDF5 decompresses each chunk that they lie in once."""
    with _dataset(path, inside, IntegrityError) as dataset:
        part = (slice(*matrices), slice(*rows), slice(0, dataset.shape[-1]))[-dataset.ndim :]
        if dataset.chunks:
            _refuse_odd_chunks(dataset, path, part)
        block: np.ndarray = dataset[part]
        return block.reshape(-1, *block.shape[-2:])


@contextmanager
def _dataset(path: str, inside: str, fault: type[ShardwiseError] = InputError) -> Iterator[Any]:
    """The dataset of a name; any error of the HDF5 library is raised as ``fault``."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            node = file.get(inside or "/")
            if not isinstance(node, h5py.Dataset):
                found: list[str] = []
                file.visit(found.append)
                arrays = [f"/{name}" for name in found if isinstance(file[name], h5py.Dataset)]
                raise names.choose_one(path, inside, arrays)
            if node.file.filename != file.filename or node.external or node.is_virtual:
                raise InputError(
                    f"{path}:{inside}: its numbers lie elsewhere, behind a link or in a virtual "
                    "dataset; name the files that hold them, or copy them into one dataset"
                )
            yield node
    except (OSError, LookupError, RuntimeError, ValueError, TypeError, zlib.error) as error:
        raise fault(f"{path} cannot be read as HDF5: {error!s:.200}") from error


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


def _refuse_filters(dataset: Any, where: str) -> None:
    """Refuse a filter that is not installed, or whose decoded size cannot be checked here.

    Shuffle and Fletcher32 may stand before the one that compresses, only Fletcher32 behind it.
    """
    filters = _filters(dataset)
    first = next((i for i, n in enumerate(filters) if n in _COMPRESSED), len(filters))
    odd = {*filters[:first]} - {_SHUFFLE, _FLETCHER32} or {*filters[first + 1 :]} - {_FLETCHER32}
    if bad := sorted(odd) or [n for n in filters if not h5py.h5z.filter_avail(n)]:
        raise InputError(
            f"{where}: its chunks went through the HDF5 filter {bad[0]}, which is not installed "
            "(pip install hdf5plugin on every node), or cannot be checked here; write the file "
            "again with gzip: h5repack -f GZIP=4 IN OUT"
        )


def _refuse_odd_chunks(dataset: Any, path: str, part: tuple[slice, ...]) -> None:
    """Refuse chunks of other sizes once decoded: HDF5 would read what lies behind in memory."""
    filters, shape = _filters(dataset), dataset.chunks
    nbytes = math.prod(shape) * dataset.id.get_type().get_size()
    at = next((i for i, number in enumerate(filters) if number in _COMPRESSED), len(filters))
    whole = nbytes + _CHECKSUM_BYTES * filters[:at].count(_FLETCHER32)
    behind = _CHECKSUM_BYTES * filters[at:].count(_FLETCHER32)

    def check(chunk: Any) -> None:
        ends = map(operator.add, chunk.chunk_offset, shape)
        # A writer may leave chunks at the edge unfiltered, without saying so in the mask.
        edge = any(map(operator.gt, ends, dataset.shape)) and chunk.size == nbytes
        if edge or at == len(filters) or chunk.filter_mask >> at & 1:
            odd = chunk.size not in (nbytes, whole + behind)
        elif not (odd := chunk.size > 2 * whole + MIB):
            _, stored = dataset.id.read_direct_chunk(chunk.chunk_offset)
            count = streams.COUNTED[_COMPRESSED[filters[at]]]
            odd = count(stored[: len(stored) - behind], whole) != whole
        if odd:
            raise IntegrityError(
                f"{path}: the chunk of {dataset.name} at {chunk.chunk_offset} does not decode to "
                f"{nbytes} bytes; copy or write it again"
            )

    wanted = {
        tuple(s.start // n * n for s, n in zip(own, shape, strict=True))
        for own in dataset.iter_chunks(part)
    }
    found = list[Any]()
    # To ask for one chunk by its place takes as long as to go through them all.
    dataset.id.chunk_iter(lambda c: found.append(c) if c.chunk_offset in wanted else None)
    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(check, found):
            pass


def _offset(dataset: Any, where: str) -> int | None:
    """Byte at which the elements begin if they lie in the file as one block; else None."""
    offset: int | None = dataset.id.get_offset()
    nbytes = math.prod(dataset.shape) * dataset.dtype.itemsize
    # The library would read other bytes in place of those that are missing.
    if offset is not None and dataset.id.get_storage_size() != nbytes:
        raise InputError(f"{where}: is damaged: it has fewer bytes than numbers; write it again")
    # An enumeration, or a number that fills its bytes in part, is converted by the library.
    plain = dataset.id.get_type().equal(h5py.h5t.py_create(dataset.dtype))
    return offset if plain and not dataset.file.userblock_size else None
