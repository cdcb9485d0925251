"""Datasets of HDF5 files, by h5py: contiguous ones are read as bytes, chunked ones decoded."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from shardwise.errors import InputError, IntegrityError, ShardwiseError
from shardwise.files.formats import names
from shardwise.files.npy import Header, checked_descr


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
            _load_filters(dataset, where)
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
        _load_filters(dataset, path)
        block: np.ndarray = dataset[part]
        return block.reshape(-1, *block.shape[-2:])


@contextmanager
def _opened(path: str, fault: type[ShardwiseError] = InputError) -> Iterator[Any]:
    """An open file; any error of the HDF5 library is raised as ``fault``."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            yield file
    except (OSError, LookupError, RuntimeError, ValueError, TypeError) as error:
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
    plist = dataset.id.get_create_plist()
    return [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]


def _load_filters(dataset: Any, where: Path | str) -> None:
    """Make sure that the filters of a dataset's chunks are installed; those of detectors may be."""
    filters = _filters(dataset)
    if not all(map(h5py.h5z.filter_avail, filters)):
        with suppress(ImportError):
            import hdf5plugin  # noqa: F401 (it brings filters of detectors)
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
    # If a chunk is too short, the library reads whatever lies behind it in memory.
    nbytes = math.prod(dataset.chunks) * dataset.id.get_type().get_size()
    whole = (nbytes, nbytes + 4)  # the latter with a checksum
    plain = {h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}.issuperset(_filters(dataset))
    if plain and dataset.id.chunk_iter(lambda chunk: chunk.size not in whole or None):
        raise InputError(f"{where} is damaged: a chunk is too short; copy or write it again")
    return {"chunks": chunks, "missing": missing, "fill": str(dataset.fillvalue)}


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
