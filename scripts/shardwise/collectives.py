"""Collectives for data-parallel work: sums, means, statistics, gradients, parameters, indices.

The first argument is the communicator (an intracommunicator of mpi4py), and every rank of it makes
the same calls in the same order. Before anything else the ranks compare what they pass: where
shapes or dtypes differ, or one is not supported, all of them raise the same
:class:`~shardwise.errors.InputError`; none is left waiting.

*Arrays* are NumPy's, of any memory order. Those of cupy are copied to the host and back; MPI sees
host memory only. Elements travel as bytes in buffers, never pickled, so float16, which MPI has no
type for, travels as it is. The ranks must have the same byte order.

*Bits.* Each element of a sum is added by one rank alone, in the order of the ranks, in float64
(complex128 for complex numbers), and rounded once to the dtype of the array. The other ranks
get a copy. So all ranks hold the same bits, and the same arrays on the same ranks give them
again, whatever MPI library moves the bytes and over however many nodes. Sums of integers are
exact, or refused.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import xxhash

from shardwise.errors import InputError

FLOATS = ("float16", "float32", "float64", "complex64", "complex128")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")

_PIECE = 2**20  # elements that a rank sends at a time: memory stays bounded, and counts small
_CHUNK = 2**16  # elements of a statistic at a time: float64 copies of them fit a core's cache
_LOW = 0xFFFFFFFF
_CARD = np.dtype([("digest", "u8"), ("length", "i8"), ("count", "i8")])
_MOMENTS = np.dtype(
    [
        ("count", "i8"),
        ("sum", "f8"),
        ("mean", "f8"),
        ("squares", "f8"),
        ("min", "f8"),
        ("argmin", "i8"),
        ("max", "f8"),
        ("argmax", "i8"),
    ]
)


@dataclass(frozen=True)
class Statistics:
    """What all elements of all ranks have in common, in float64.

    Attributes
    ----------
    count
        Number of elements.
    sum, mean, std
        Their sum, mean and standard deviation (of the population: divided by ``count``).
        NaN, but a sum of 0, where there are no elements.
    min, max
        The extremes. NaN where there is a NaN, or no element.
    argmin, argmax
        ``(rank, index)`` of the extremes, the index as in ``array.flat``: the first of them, or the
        first NaN. None where there are no elements.
    """

    count: int
    sum: float
    mean: float
    std: float
    min: float
    max: float
    argmin: tuple[int, int] | None
    argmax: tuple[int, int] | None


def total(comm: Any, array: Any) -> Any:
    """The sum over all ranks, element by element.

    Parameters
    ----------
    array
        Array of floats, complex numbers or integers, of the same shape and dtype on every rank.

    Returns
    -------
    array of the same kind, shape and dtype, in C order
        The same bits on every rank. Floats overflow to infinity, as in NumPy.

    Raises
    ------
    InputError
        On every rank: where ranks differ, the dtype is another one, or a sum of integers does not
        fit it.
    """
    host = _host(array)
    _agree(comm, "total", [host], FLOATS + INTEGERS)
    summed = _whole_sum if host.dtype.kind in "iu" else _real_sum
    return _like(array, summed(comm, _flat(host)).reshape(host.shape))


def mean(comm: Any, array: Any) -> Any:
    """The mean over all ranks, element by element; as :func:`average` of one array.

    Raises
    ------
    InputError
        On every rank: where ranks differ, or the array is not of floats or complex numbers (the
        mean of integers is none).
    """
    host = _host(array)
    _agree(comm, "mean", [host], FLOATS)
    return _like(array, _real_sum(comm, _flat(host), comm.size).reshape(host.shape))


def average(
    comm: Any, arrays: Sequence[Any], count: int = 1, out: Sequence[Any] | None = None
) -> list[Any]:
    """Average arrays over all ranks, such as gradients: their sums, divided by the sum of counts.

    All arrays of one dtype travel in one buffer.

    Parameters
    ----------
    arrays
        Arrays of floats or complex numbers; their shapes and dtypes are the same on every rank.
    count
        How many samples this rank's arrays are the *sums* over; 0 is allowed. With sums of
        gradients the result is the gradient of the mean loss over the samples of all ranks, also
        where the ranks have unequal numbers of them. With 1 on every rank it is the plain average.
    out
        Arrays to write the results to, of the same shapes and dtypes; ``arrays`` itself is allowed.

    Returns
    -------
    list
        ``out``, or new arrays in C order. The same bits on every rank.

    Raises
    ------
    InputError
        On every rank, with ``out`` unchanged: where ranks differ, a dtype is another one, ``out``
        does not fit ``arrays``, or counts are negative or all 0.
    """
    hosts = [_host(array) for array in arrays]
    counts = _agree(comm, "average", hosts, FLOATS, count, out)
    if counts.min() < 0 or not counts.any():
        raise InputError(
            f"average: the ranks' counts are {counts.tolist()}; each must be a whole number, 0 or "
            "more, and one of them more than 0"
        )
    results: list[Any] = [None] * len(hosts)
    for group in _by_dtype(hosts):
        averaged = _real_sum(comm, _fused([hosts[i] for i in group]), int(counts.sum()))
        for i, part in zip(group, _cut(averaged, [hosts[i].shape for i in group]), strict=True):
            results[i] = part
    if out is None:
        return [_like(array, result) for array, result in zip(arrays, results, strict=True)]
    for target, result in zip(out, results, strict=True):
        _store(target, result)
    return list(out)


def broadcast(comm: Any, arrays: Sequence[Any], root: int = 0) -> None:
    """Overwrite arrays, such as parameters, with those of one rank; bit for bit.

    All arrays of one dtype travel in one buffer; a single contiguous one from where it lies.

    Parameters
    ----------
    arrays
        Arrays of floats, complex numbers, integers or bool; their shapes and dtypes are the same on
        every rank.
    root
        The rank whose arrays the others get.

    Raises
    ------
    InputError
        On every rank, with nothing changed: where ranks differ, a dtype is another one, there is no
        such root, or an array cannot be written to.
    """
    hosts = [_host(array) for array in arrays]
    targets = None if comm.rank == root else arrays
    _agree(comm, f"broadcast from rank {root}", hosts, ("bool", *FLOATS, *INTEGERS), 1, targets)
    if not 0 <= root < comm.size:
        raise InputError(f"broadcast: root is {root}; it must be 0 to {comm.size - 1}")
    for group in _by_dtype(hosts):
        buffer = _fused([hosts[i] for i in group])
        comm.Bcast(_bytes(buffer), root)
        if targets is None:
            continue
        for i, part in zip(group, _cut(buffer, [hosts[i].shape for i in group]), strict=True):
            if arrays[i] is not hosts[i] or not np.may_share_memory(part, hosts[i]):
                _store(arrays[i], part)


def statistics(comm: Any, array: Any) -> Statistics:
    """Statistics over all elements of all ranks, in float64; the same on every rank.

    The count, mean and sum of squared deviations of chunks, each from two passes, are joined pair
    by pair: those of a rank first, then the ranks in their order. The relative error of std is some
    κ 2⁻⁵³ with κ = |mean| / std; with Σx² - (Σx)² / n it would be κ² 2⁻⁵³. Integers above 2⁵³ are
    rounded.

    After T. F. Chan, G. H. Golub and R. J. LeVeque, "Updating Formulae and a Pairwise Algorithm
    for Computing Sample Variances", Stanford report STAN-CS-79-773, 1979.

    Parameters
    ----------
    array
        Array of floats, integers or bool, of any shape, also an empty one. Ranks may differ.

    Raises
    ------
    InputError
        On every rank: where the dtype of any is another one, such as a complex one.
    """
    host = _host(array)
    allowed = ("bool", "float16", "float32", "float64", *INTEGERS)
    _agree(comm, "statistics", [host], allowed, alike=False)
    own = _moments(host)
    ranks = np.empty(comm.size, _MOMENTS)
    comm.Allgather(_bytes(own), _bytes(ranks))
    with np.errstate(all="ignore"):
        return _statistics(ranks)


def shard_indices(
    size: int, rank: int, ranks: int, seed: int | None = None, epoch: int = 0
) -> np.ndarray:
    """Which of ``size`` samples a rank takes in an epoch, and in which order.

    The samples are shuffled, the same on all ranks, and dealt out one by one: rank r gets those
    at r, r + ranks, r + 2 · ranks, … So each sample belongs to one rank, the ranks' numbers of
    samples differ by at most one, and what all ranks together take first does not depend on
    their number. Every rank holds the whole order for a moment: 8 bytes a sample.

    The order is that of ``Generator.permutation`` over PCG64, seeded with ``[seed, epoch]``. NumPy
    keeps the stream of PCG64 for good; it may change ``permutation`` in a new version, so the same
    epochs need the same version.

    Parameters
    ----------
    size
        Number of samples.
    rank, ranks
        This rank, and how many there are.
    seed
        A whole number, 0 or more. None: the samples in order.
    epoch
        Number of the epoch, 0 or more; each has an order of its own.

    Returns
    -------
    numpy.ndarray of int64, shape ``(size // ranks,)`` or one more

    Raises
    ------
    InputError
        Where a number is out of its range.
    """
    if not 0 <= rank < ranks:
        raise InputError(
            f"shard_indices: rank is {rank} of {ranks} ranks; it must be 0 to ranks - 1"
        )
    if size < 0 or epoch < 0 or (seed is not None and seed < 0):
        raise InputError(
            f"shard_indices: size {size}, seed {seed}, epoch {epoch}; none may be negative"
        )
    if seed is None:
        return np.arange(rank, size, ranks)
    order = np.random.Generator(np.random.PCG64([seed, epoch])).permutation(size)
    return order[rank::ranks].astype(np.int64)


def _host(array: Any) -> np.ndarray:
    """The array in host memory: itself, or a copy of one of cupy."""
    return array.get() if hasattr(array, "__cuda_array_interface__") else np.asarray(array)


def _like(array: Any, host: np.ndarray) -> Any:
    """A new array where ``array`` lies, on the host or on its device."""
    if not hasattr(array, "__cuda_array_interface__"):
        return host
    fresh = array.copy()
    fresh.set(host)
    return fresh


def _store(target: Any, host: np.ndarray) -> None:
    target[...] = _like(target, host)


def _flat(host: np.ndarray) -> np.ndarray:
    """All elements in C order, side by side; a contiguous array's own memory."""
    return np.ascontiguousarray(host).reshape(-1)


def _bytes(array: np.ndarray) -> np.ndarray:
    """The bytes of a contiguous array, which MPI takes for any dtype."""
    return array.reshape(-1).view(np.uint8)


def _agree(
    comm: Any,
    call: str,
    hosts: Sequence[np.ndarray],
    allowed: Sequence[str],
    count: Any = 1,
    targets: Sequence[Any] | None = None,
    alike: bool = True,
) -> np.ndarray:
    """Refuse, on every rank alike, what does not fit together; the counts of all ranks.

    Every rank sends a digest of what it passes; only where these differ are words exchanged.

    Parameters
    ----------
    targets
        Arrays that results are to be written to.
    alike
        Whether shapes and dtypes have to be the same on all ranks.
    """
    wrong = next(_faults(hosts, allowed, targets), None)
    words = ["", wrong] if wrong else [call, *(_described(host) for host in hosts if alike)]
    text = "\n".join(words).encode()
    whole = isinstance(count, int | np.integer) and 0 <= count < 2**63
    own = np.array([(xxhash.xxh3_64_intdigest(text), len(text), count if whole else -1)], _CARD)
    cards = np.empty(comm.size, _CARD)
    comm.Allgather(_bytes(own), _bytes(cards))
    differs = np.flatnonzero(cards["digest"] != cards["digest"][0])
    if differs.size:
        pair = 0, int(differs[0])
        raise InputError(_difference(call, pair, [_words_of(comm, r, text, cards) for r in pair]))
    if wrong:
        raise InputError(f"{call}: {wrong}")
    return cards["count"]


def _faults(
    hosts: Sequence[np.ndarray], allowed: Sequence[str], targets: Sequence[Any] | None
) -> Iterator[str]:
    """What a rank finds wrong with its own arrays, and with those that results go to."""
    for number, host in enumerate(hosts):
        if host.dtype.name not in allowed:
            yield f"array {number} is of {_described(host)}; allowed are {', '.join(allowed)}"
    if targets is None:
        return
    if len(targets) != len(hosts):
        yield f"there are {len(targets)} arrays for {len(hosts)} results"
    for number, (host, target) in enumerate(zip(hosts, targets, strict=False)):
        if not hasattr(target, "flags") or not getattr(target.flags, "writeable", True):
            yield f"array {number} for the results cannot be written to; pass a writeable array"
        elif (target.shape, target.dtype) != (host.shape, host.dtype):
            yield (
                f"array {number} for the results is of {_described(target)}; it must be of "
                f"{_described(host)}"
            )


def _described(array: np.ndarray) -> str:
    dtype = array.dtype
    return f"{dtype.name if dtype.isnative else dtype.str} {array.shape}"


def _words_of(comm: Any, rank: int, text: bytes, cards: np.ndarray) -> list[str]:
    """What a rank passes, on all ranks."""
    buffer = np.empty(cards["length"][rank], np.uint8)
    if comm.rank == rank:
        buffer[:] = np.frombuffer(text, np.uint8)
    comm.Bcast(buffer, rank)
    return buffer.tobytes().decode().split("\n")


def _difference(call: str, ranks: tuple[int, int], both: list[list[str]]) -> str:
    """What a rank finds wrong, or else the first difference between two ranks."""
    for rank, (named, *rest) in zip(ranks, both, strict=True):
        if not named:
            return f"{call}: rank {rank}: {rest[0]}"
    pairs = enumerate(zip_longest(*both, fillvalue="nothing"))
    place, (ours, theirs) = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
    if not place:
        return (
            f"rank {ranks[0]} calls {ours}, rank {ranks[1]} calls {theirs}; all ranks must make "
            "the same calls in the same order"
        )
    return (
        f"{call}: array {place - 1}: rank {ranks[0]} has {ours}, rank {ranks[1]} has {theirs}; all "
        "ranks must pass arrays of the same shapes and dtypes in the same order"
    )


def _by_dtype(hosts: Sequence[np.ndarray]) -> list[list[int]]:
    """Positions of the arrays of each dtype."""
    groups: dict[np.dtype, list[int]] = {}
    for position, host in enumerate(hosts):
        groups.setdefault(host.dtype, []).append(position)
    return list(groups.values())


def _fused(hosts: Sequence[np.ndarray]) -> np.ndarray:
    """One flat array of the elements of several arrays; of one alone as :func:`_flat`."""
    parts = [_flat(host) for host in hosts]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _cut(flat: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Parts of a flat array, in their shapes."""
    parts, low = [], 0
    for shape in shapes:
        size = int(np.prod(shape, dtype=object))
        parts.append(flat[low : low + size].reshape(shape))
        low += size
    return parts


def _real_sum(comm: Any, flat: np.ndarray, divisor: int = 1) -> np.ndarray:
    """The sum over ranks of flat arrays of floats, divided, as an array of its own."""
    wide = np.complex128 if flat.dtype.kind == "c" else np.float64

    def add(rows: np.ndarray) -> np.ndarray:
        summed = rows[0].astype(wide)
        for row in rows[1:]:
            summed += row
        if divisor != 1:
            summed /= divisor
        return summed.astype(flat.dtype)

    with np.errstate(all="ignore"):  # NaN and infinities are results like others
        return _exchanged(comm, flat, add)


def _whole_sum(comm: Any, flat: np.ndarray) -> np.ndarray:
    """The sum over ranks of flat arrays of integers, if it fits their dtype."""
    limits = np.iinfo(flat.dtype)
    misfits = np.zeros(1, np.int64)

    def add(rows: np.ndarray) -> np.ndarray:
        # Sums of the halves of 64 bits do not overflow below 2³¹ ranks.
        high, low = np.zeros((2, rows.shape[1]), np.int64)
        for row in rows:
            whole = row.astype(np.uint64 if flat.dtype.kind == "u" else np.int64)
            high += (whole >> 32).astype(np.int64)
            low += (whole & _LOW).astype(np.int64)
        high += low >> 32
        whole = (high << 32) | (low & _LOW)
        summed = whole.astype(flat.dtype)
        fits = (high >= limits.min >> 32) & (high <= limits.max >> 32)
        misfits[0] += np.count_nonzero(~fits | (summed.astype(np.int64) != whole))
        return summed

    summed = _exchanged(comm, flat, add)
    everywhere = np.empty_like(misfits)
    comm.Allreduce(misfits, everywhere)
    if everywhere[0]:
        raise InputError(
            f"total: {everywhere[0]} of {flat.size} sums do not fit {flat.dtype.name}; convert the "
            "array to a wider dtype, or to float64"
        )
    return summed


def _exchanged(comm: Any, flat: np.ndarray, add: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Have each element added by one rank, and give the results to all.

    Parameters
    ----------
    flat
        This rank's array, shape ``(size,)``.
    add
        Makes ``(n,)`` results out of the arrays of all ranks, ``(ranks, n)``.
    """
    result = np.empty_like(flat)
    ranks, item = comm.size, flat.itemsize
    step = max(ranks, _PIECE)
    for low in range(0, flat.size, step):
        piece = flat[low : low + step]
        starts = piece.size * np.arange(ranks + 1) // ranks
        own = int(starts[comm.rank + 1] - starts[comm.rank])
        shares = (np.diff(starts) * item, starts[:-1] * item)
        rows = np.empty((ranks, own), flat.dtype)
        even = (np.full(ranks, own * item), np.arange(ranks) * own * item)
        comm.Alltoallv([_bytes(piece), shares], [_bytes(rows), even])
        comm.Allgatherv(_bytes(add(rows)), [_bytes(result[low : low + step]), shares])
    return result


def _moments(host: np.ndarray) -> np.ndarray:
    """What one rank knows of its elements, as one record."""
    chunks = np.nditer(
        host,
        flags=["external_loop", "buffered", "zerosize_ok"],
        op_dtypes=[np.float64],
        order="C",
        casting="same_kind",
        buffersize=_CHUNK,
    )
    records, done = [], 0
    with np.errstate(all="ignore"):
        for chunk in chunks:
            if chunk.size:
                records.append(_of_chunk(chunk, done))
            done += chunk.size
        return _joined(np.array(records, _MOMENTS)) if records else np.zeros(1, _MOMENTS)


def _of_chunk(chunk: np.ndarray, first: int) -> tuple:
    """A record of ``chunk`` ``(n,)``, which begins at element ``first``."""
    summed = chunk.sum()
    squares = np.square(chunk - summed / chunk.size).sum()
    least, most = int(chunk.argmin()), int(chunk.argmax())  # a NaN is the extreme for both
    lowest, highest = (chunk[least], first + least), (chunk[most], first + most)
    return (chunk.size, summed, summed / chunk.size, squares, *lowest, *highest)


def _joined(records: np.ndarray) -> np.ndarray:
    """One record ``(1,)`` of several ``(n,)``, joined two by two; none is of no elements."""
    least, most = records["min"].argmin(), records["max"].argmax()
    lowest, highest = records[least], records[most]
    while len(records) > 1:
        even = len(records) // 2 * 2
        a, b = records[:even:2], records[1:even:2]
        both = a.copy()
        both["count"] += b["count"]
        both["sum"] += b["sum"]
        apart, share = b["mean"] - a["mean"], b["count"] / both["count"]
        both["mean"] += apart * share
        both["squares"] += b["squares"] + apart**2 * a["count"] * share
        records = np.concatenate([both, records[even:]])
    whole = records.copy()
    whole["min"], whole["argmin"] = lowest["min"], lowest["argmin"]
    whole["max"], whole["argmax"] = highest["max"], highest["argmax"]
    return whole


def _statistics(ranks: np.ndarray) -> Statistics:
    """What the records of all ranks ``(ranks,)`` say together."""
    present = np.flatnonzero(ranks["count"])
    if not present.size:
        return Statistics(0, 0.0, np.nan, np.nan, np.nan, np.nan, None, None)
    records = ranks[present]
    (whole,) = _joined(records)
    count = int(whole["count"])
    # Infinite elements, or differences, spoil the joined mean but not the sum.
    middle = whole["mean"] if np.isfinite(whole["mean"]) else whole["sum"] / count
    return Statistics(
        count=count,
        sum=float(whole["sum"]),
        mean=float(middle),
        std=float(np.sqrt(whole["squares"] / count)),
        min=float(whole["min"]),
        max=float(whole["max"]),
        argmin=(int(present[records["min"].argmin()]), int(whole["argmin"])),
        argmax=(int(present[records["max"].argmax()]), int(whole["argmax"])),
    )
