"""Collectives for data-parallel work, on Allreduce and Bcast of buffers; nothing is pickled.

Every rank of ``comm`` makes the same calls in the same order, with arrays of the same shapes and
dtypes; where these differ, all ranks raise `InputError`, and none is left waiting. Arrays are
NumPy's or cupy's, which travel through the host. The dtype stays: floats are added in float64
(complex128 for complex numbers) and rounded once; sums of integers are exact, or refused. All ranks
hold the same bits; another number or placement of the ranks, or another MPI library, may change the
last ones. A sum takes 8 more bytes per number.

The mean over samples that the ranks hold in unequal numbers, in a file to be started with
``mpiexec -n 3 python -m mpi4py FILE``::

    import numpy as np
    from mpi4py import MPI
    from shardwise.reduce.collectives import average, broadcast, shard_indices, total

    comm = MPI.COMM_WORLD
    samples = np.arange(1000.0)
    part = samples[shard_indices(len(samples), comm.rank, comm.size, seed=1)]

    center = np.array(100.0 * comm.rank)  # each rank begins somewhere else
    broadcast(comm, [center])
    (offset,) = average(comm, [(part - center).sum()], count=len(part))
    print(center + offset, total(comm, part.sum()) / len(samples))
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash

from shardwise.errors import InputError
from shardwise.reduce.comm import Comm

FLOATS = ("float16", "float32", "float64", "complex64", "complex128")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")

_LOW = 0xFFFFFFFF


def total(comm: Comm, array: Any) -> Any:
    """The sum over all ranks, element by element, as a new array of the same kind and dtype."""
    host = _host(array)
    _agree(comm, "total", [host], FLOATS + INTEGERS)
    if host.dtype.kind in "iu":
        return _like(array, _integer_sum(comm, host))
    return _like(array, _sums(comm, [host], 0)[0][0])


def average(comm: Comm, arrays: Sequence[Any], count: int = 1) -> list[Any]:
    """Average floats or complex numbers over all ranks: their sums, divided by the sum of counts.

    ``count`` is how many samples this rank's arrays are the *sums* over; 0 is allowed. With sums of
    gradients the result is the gradient of the mean loss over the samples of all ranks, also where
    the ranks have unequal numbers of them. All arrays travel in one buffer.
    """
    hosts = [_host(array) for array in arrays]
    fault = "" if count >= 0 else f"count is {count}; it must be 0 or more"
    _agree(comm, "average", hosts, FLOATS, fault)
    results, counted = _sums(comm, hosts, count)
    if not counted:
        raise InputError("average: the counts of all ranks are 0; one must be more")
    return [_like(array, result) for array, result in zip(arrays, results, strict=True)]


def broadcast(comm: Comm, arrays: Sequence[Any], root: int = 0) -> None:
    """Overwrite arrays, such as parameters, with those of one rank; bit for bit, or not at all."""
    hosts = [_host(array) for array in arrays]
    fault = "" if 0 <= root < comm.size else f"root is {root}; it must be 0 to {comm.size - 1}"
    for number, array in enumerate(arrays):
        if comm.rank != root and not getattr(getattr(array, "flags", None), "writeable", True):
            fault = fault or f"array {number} cannot be written to; pass a writeable array"
    _agree(comm, f"broadcast from rank {root}", hosts, ("bool", *FLOATS, *INTEGERS), fault)
    for array, host in zip(arrays, hosts, strict=True):
        buffer = np.ascontiguousarray(host).reshape(-1)
        comm.Bcast(buffer.view(np.uint8), root)
        if comm.rank != root:
            array[...] = _like(array, buffer.reshape(host.shape))


def shard_indices(
    size: int, rank: int, ranks: int, seed: int | None = None, epoch: int = 0
) -> np.ndarray:
    """Which of ``size`` samples a rank takes in an epoch, and in which order.

    All ranks shuffle the samples alike, by ``Generator(PCG64([seed, epoch])).permutation``, or keep
    their order where ``seed`` is None. Rank r gets those at r, r + ranks, r + 2 · ranks, … So each
    sample belongs to one rank, and what all take first together does not depend on their number.
    """
    if not 0 <= rank < ranks or size < 0:
        raise InputError(f"shard_indices: rank {rank} of {ranks} cannot take part of {size}")
    if seed is None:
        return np.arange(rank, size, ranks)
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(size)[rank::ranks]


def _host(array: Any) -> np.ndarray:
    """The array in host memory: itself, or a copy of one of cupy."""
    return array.get() if hasattr(array, "__cuda_array_interface__") else np.asarray(array)


def _like(array: Any, host: np.ndarray) -> Any:
    """A host array where ``array`` lies, on the host or on its device."""
    if not hasattr(array, "__cuda_array_interface__"):
        return host
    fresh = array.copy()
    fresh.set(host)
    return fresh


def _agree(
    comm: Comm, call: str, hosts: Sequence[np.ndarray], allowed: Sequence[str], fault: str = ""
) -> None:
    """Refuse, on every rank, what one of them cannot take, or what differs between them."""
    for number, host in enumerate(hosts):
        if host.dtype.name not in allowed:
            fault = fault or f"array {number} is of {host.dtype}; allowed are {', '.join(allowed)}"
    words = ", ".join([call, *(f"{host.dtype.str} {host.shape}" for host in hosts)])
    own = np.array([xxhash.xxh3_64_intdigest(words.encode()), bool(fault)], np.uint64)
    ranks = np.empty((comm.size, 2), np.uint64)
    comm.Allgather(own, ranks)
    if fault:
        raise InputError(f"{call}: {fault}")
    for rank in np.flatnonzero(ranks[:, 1]):
        raise InputError(f"{call}: rank {rank} cannot take part; its own message says why")
    for rank in np.flatnonzero(ranks[:, 0] != ranks[0, 0]):
        raise InputError(
            f"rank {rank} calls something else than rank 0; this is rank {comm.rank}: {words}; all "
            "ranks must make the same calls with arrays of the same shapes and dtypes"
        )


def _allreduce(comm: Comm, buffer: np.ndarray) -> None:
    from mpi4py import MPI  # here: who calls this is a rank

    comm.Allreduce(MPI.IN_PLACE, buffer)


def _sums(comm: Comm, hosts: Sequence[np.ndarray], count: int) -> tuple[list[np.ndarray], float]:
    """Sums of floats over all ranks, divided by the sum of counts where that is not 0; that sum."""
    kinds = ["complex128" if host.dtype.kind == "c" else "float64" for host in hosts]
    wide = [
        host.astype(kind).reshape(-1).view("f8") for host, kind in zip(hosts, kinds, strict=True)
    ]
    buffer = np.concatenate([*wide, [float(count)]])
    _allreduce(comm, buffer)
    ends = np.cumsum([len(part) for part in wide], dtype=np.int64)
    with np.errstate(all="ignore"):
        buffer[:-1] /= buffer[-1] or 1
        return [
            buffer[end - len(part) : end].view(kind).reshape(host.shape).astype(host.dtype)
            for part, end, kind, host in zip(wide, ends, kinds, hosts, strict=True)
        ], float(buffer[-1])


def _integer_sum(comm: Comm, host: np.ndarray) -> np.ndarray:
    """The sum of integers over all ranks: halves of 32 bits never overflow on the way."""
    wide = host.astype("u8" if host.dtype.kind == "u" else "i8")
    halves = np.stack([wide >> 32, wide & _LOW]).astype("i8", order="C")
    _allreduce(comm, halves)
    high, low = halves[0] + (halves[1] >> 32), (halves[1] & _LOW).astype(wide.dtype)
    whole, limits = np.iinfo(wide.dtype), np.iinfo(host.dtype)
    found = (high.astype(wide.dtype) << 32) | low
    fits = (high >= whole.min >> 32) & (high <= whole.max >> 32)
    fits &= (found >= limits.min) & (found <= limits.max)
    if not fits.all():
        raise InputError(
            f"total: {fits.size - np.count_nonzero(fits)} of {fits.size} sums do not fit "
            f"{host.dtype}; pass a wider dtype"
        )
    return np.asarray(found).astype(host.dtype)
