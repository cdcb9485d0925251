"""Datasets of HDF5 files, by h5py: contiguous ones are read as bytes, chunked ones decoded."""

import bz2
import math
import operator
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import h5py
import numpy as np

from shardwise.errors import InputError, IntegrityError, ShardwiseError
from shardwise.files.lookup import choose_one
from shardwise.files.npy import Header, checked_descr
from shardwise.units import MIB

_SHUFFLE, _FLETCHER32, _BITSHUFFLE = 2, 3, 32008  # numbers of filters in the HDF5 format
_CHECKSUM_BYTES = 4


def header(path: str, inside: str) -> Header:
    """Shape, type and place of a dataset; InputError if it cannot be read."""
    with _dataset(path, inside) as dataset:
        where = f"{path}:{inside}"
        descr = checked_descr(dataset.dtype, where)
        if dataset.id.get_storage_size() == 0:
            raise InputError(f"{where}: nothing has been written to it; write the numbers")
        place = int(h5py.h5o.get_info(dataset.id).addr)  # the same, whatever name led to it
        if chunk := dataset.chunks:
            filters, at = _filters(dataset)
            # Shuffle and Fletcher32 may stand before what compresses, only Fletcher32 behind it.
            odd = {*filters[:at]} - {_SHUFFLE, _FLETCHER32} or {*filters[at + 1 :]} - {_FLETCHER32}
            if bad := sorted(odd) or [n for n in filters if not h5py.h5z.filter_avail(n)]:
                raise InputError(
                    f"{where}: its chunks went through the HDF5 filter {bad[0]}, which is not "
                    "installed (pip install hdf5plugin on every node), or cannot be checked here; "
                    "write the file again with gzip: h5repack -f GZIP=4 IN OUT"
                )
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
        offset: int | None = dataset.id.get_offset()
        nbytes = math.prod(dataset.shape) * dataset.dtype.itemsize  # Python integers: no overflow
        # The library would read other bytes in place of those that are missing.
        if offset is not None and dataset.id.get_storage_size() != nbytes:
            raise InputError(f"{where}: is damaged, as bytes are missing; write it again")
        # An enumeration, or a number that fills its bytes in part, is converted by the library.
        plain = dataset.id.get_type().equal(h5py.h5t.py_create(dataset.dtype))
        if offset is None or not plain or dataset.file.userblock_size:
            offset, chunk = 0, (*(1,) * (dataset.ndim - 1), *dataset.shape[-1:])
        return Header(dataset.shape, descr, offset=offset, place=place, chunk=chunk or ())


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
                raise choose_one(path, inside, arrays)
            if node.file.filename != file.filename or node.external or node.is_virtual:
                raise InputError(
                    f"{path}:{inside}: its numbers lie elsewhere, behind a link or in a virtual "
                    "dataset; name the files that hold them, or copy them into one dataset"
                )
            yield node
    except (OSError, LookupError, RuntimeError, ValueError, TypeError, zlib.error) as error:
        raise fault(f"{path} cannot be read as HDF5: {error!s:.200}") from error


def _filters(dataset: Any) -> tuple[list[int], int]:
    """The filters of chunks, in order, and the place of what compresses, else their number."""
    plist = dataset.id.get_create_plist()
    found = [plist.get_filter(i) for i in range(plist.get_nfilters())]
    if not all(h5py.h5z.filter_avail(number) for number, *_ in found):
        with suppress(ImportError):
            import hdf5plugin  # noqa: F401 (it brings filters of detectors)
    # Bitshuffle without compression keeps the number of bytes, as shuffle does.
    filters = [
        _SHUFFLE if number == _BITSHUFFLE and not any(values[4:5]) else number
        for number, _, values, _ in found
    ]
    return filters, next((i for i, n in enumerate(filters) if n in _COUNTED), len(filters))


def _refuse_odd_chunks(dataset: Any, path: str, part: tuple[slice, ...]) -> None:
    """Refuse chunks of other sizes once decoded: HDF5 would read what lies behind in memory."""
    (filters, at), shape = _filters(dataset), dataset.chunks
    nbytes = math.prod(shape) * dataset.id.get_type().get_size()
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
            odd = _COUNTED[filters[at]](stored[: len(stored) - behind], whole) != whole
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
        list(pool.map(check, found))


# How many bytes a compressed chunk decodes to, counted without holding them in memory.


def _streamed(make: Callable[[], Any], raw: bytes, most: int) -> int:
    """By decoding a MiB at a time; counts several streams in a row, as the libraries do."""
    nbytes, stream = 0, make()
    while nbytes <= most:
        part = stream.decompress(raw, MIB)
        nbytes += len(part)
        raw = getattr(stream, "unconsumed_tail", b"")
        if stream.eof:
            raw = stream.unused_data.lstrip(b"\0")
            stream = make()
            if not raw:
                break
        elif not part and not raw:  # the stream is cut off
            break
    return nbytes


def _lzf(raw: bytes, most: int) -> int:
    """By adding up the lengths of runs and copies: LZF consists of nothing else."""
    at = nbytes = 0
    while at < len(raw) and nbytes <= most:
        length = raw[at]
        if length < 32:  # a run; larger bytes begin a copy
            nbytes, at = nbytes + length + 1, at + length + 2
            continue
        length >>= 5
        if length == 7:  # then another byte follows
            at += 1
            length += raw[at]
        nbytes, at = nbytes + length + 2, at + 2
    return nbytes


def _zstd(raw: bytes, most: int) -> int:
    """By the size in the header of the frame; 0 if it has none, as only streaming writers do."""
    flags, single = raw[4], raw[4] >> 5 & 1
    at = 6 - single + (0, 1, 2, 4)[flags & 3]
    wide = (single, 2, 4, 8)[flags >> 6]
    return int.from_bytes(raw[at : at + wide], "little") + 256 * (wide == 2)


# By number of the filter in HDF5: counts the bytes that a chunk decodes to, at least until they
# exceed ``most``. On a damaged stream it may raise the decoder's errors.
_COUNTED: dict[int, Callable[[bytes, int], int]] = {
    1: partial(_streamed, zlib.decompressobj),
    307: partial(_streamed, bz2.BZ2Decompressor),
    32000: _lzf,
    32001: lambda raw, most: int.from_bytes(raw[4:8], "little"),  # Blosc
    32004: lambda raw, most: int.from_bytes(raw[:8]),  # LZ4
    _BITSHUFFLE: lambda raw, most: int.from_bytes(raw[:8]),
    32015: _zstd,
}
