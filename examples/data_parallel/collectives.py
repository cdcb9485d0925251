"""Collectives for data-parallel training, on Allreduce and Bcast of buffers; nothing is pickled.

Every rank of ``comm`` makes the same calls in the same order, with arrays of the same shapes and
dtypes; if these differ, all ranks raise `ValueError`, and none is left waiting. Arrays are NumPy's
or cupy's; cupy's are copied through the host. All ranks get the same bits, but the last bits may
change with the number or placement of the ranks, or with the MPI library. This file needs only
NumPy and mpi4py: copy it into a program of your own.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np


def average(comm: Any, arrays: Sequence[Any], count: int) -> list[Any]:
    """Average arrays of floats over all ranks: their sums, divided by the sum of counts.

    ``count`` is how many samples this rank's arrays are the *sums* over; 0 is allowed. With sums of
    gradients the result is the gradient of the mean loss over the samples of all ranks, even if the
    ranks have unequal numbers of samples. All arrays travel in one buffer, in which they are added
    in float64; each result is rounded to the dtype of its array.

    Raises
    ------
    ValueError
        On every rank: if an array is not of floats, if the ranks' calls differ, or if all counts
        are 0.
    """
    hosts = [_host(array) for array in arrays]
    _agree(comm, "average", hosts)
    if wrong := [host.dtype.name for host in hosts if host.dtype.kind != "f"]:
        raise ValueError(f"average: an array is of {wrong[0]}; pass arrays of floats")
    own = np.concatenate([*(host.ravel() for host in hosts), [count]], dtype="float64")
    total = np.empty_like(own)
    comm.Allreduce(own, total)
    if not total[-1]:
        raise ValueError("average: the counts of all ranks are 0; one must be more")
    ends = np.cumsum([host.size for host in hosts], dtype=np.int64)
    with np.errstate(all="ignore"):  # NaN, infinities and overflow are valid results
        *means, _ = np.split(total / total[-1], ends)
        return [
            _like(array, mean.reshape(host.shape).astype(host.dtype))
            for array, host, mean in zip(arrays, hosts, means, strict=True)
        ]


def broadcast(comm: Any, arrays: Sequence[Any]) -> None:
    """Overwrite arrays, such as parameters, with those of rank 0, bit for bit.

    Raises
    ------
    ValueError
        On every rank, if the ranks' calls differ.
    """
    hosts = [_host(array) for array in arrays]
    _agree(comm, "broadcast", hosts)
    for array, host in zip(arrays, hosts, strict=True):
        buffer = np.ascontiguousarray(host).reshape(-1)
        comm.Bcast(buffer.view(np.uint8))
        if comm.rank:
            array[...] = _like(array, buffer.reshape(host.shape))


def shard_indices(
    size: int, rank: int, ranks: int, seed: int | None = None, epoch: int = 0
) -> np.ndarray:
    """Which of ``size`` samples a rank takes in an epoch, and in which order.

    All ranks shuffle the samples alike, by ``Generator(PCG64([seed, epoch])).permutation``, or keep
    their order if ``seed`` is None. Rank r gets the samples at r, r + ranks, r + 2 · ranks, … So
    each sample belongs to one rank, and any number of ranks takes the samples in the same order.
    """
    if seed is None:
        return np.arange(rank, size, ranks)
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(size)[rank::ranks]


def odd_ranks(comm: Any, data: Any) -> list[int]:
    """The ranks whose bytes differ from those of rank 0; the same list on every rank."""
    own = np.frombuffer(hashlib.sha256(data).digest(), np.uint8)
    ranks = np.empty((comm.size, own.size), np.uint8)
    comm.Allgather(own, ranks)
    return np.flatnonzero((ranks != ranks[0]).any(axis=1)).tolist()


def _agree(comm: Any, call: str, hosts: Sequence[np.ndarray]) -> None:
    """Refuse, on every rank, calls that differ between the ranks."""
    words = ", ".join([call, *(f"{host.dtype.str} {host.shape}" for host in hosts)])
    if odd := odd_ranks(comm, words.encode()):
        raise ValueError(
            f"rank {odd[0]} calls something else than rank 0; this is rank {comm.rank}: {words}; "
            "all ranks must make the same calls with arrays of the same shapes and dtypes"
        )


def _host(array: Any) -> np.ndarray:
    """The array in host memory: an array of NumPy itself, or a copy of an array of cupy."""
    return array.get() if hasattr(array, "__cuda_array_interface__") else np.asarray(array)


def _like(array: Any, host: np.ndarray) -> Any:
    """The host array itself, or a copy of it on the device on which ``array`` lies."""
    if not hasattr(array, "__cuda_array_interface__"):
        return host
    fresh = array.copy()
    fresh.set(host)
    return fresh
