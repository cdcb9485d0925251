"""Arithmetic on counts and bytes: numbers in, table out. No files, no devices."""

from dataclasses import dataclass
from itertools import pairwise

from shardwise import sizes
from shardwise.problem import Problem

MAX_AUTO_SHARDS = 1000
"""Under ``shards: auto`` shards grow rather than exceed this: one job a shard has a price."""

MAX_SHARDS = 1_000_000
"""In any plan: the table of so many takes some hundred MB, and no scheduler runs them all."""

# Rates that a slow node still reaches; run times asked for are a limit, not a forecast.
_SLOW_BYTES_PER_S = 50e6
_SLOW_FLOP_PER_S = 5e9
_START_MINUTES = 10


@dataclass(frozen=True)
class Shard:
    """One row of the plan; ``stop`` is exclusive, sizes are in bytes.

    ``memory`` and ``device_memory`` are what its task takes at most on the host and on a GPU.
    ``matrices`` is a digest that changes with the matrices of the shard, ``fingerprint`` one that
    changes with anything its products depend on.
    """

    shard: str
    start: int
    stop: int
    bytes: int
    product_bytes: int
    memory: int
    device_memory: int
    matrices: str = ""
    fingerprint: str = ""


@dataclass(frozen=True)
class Source:
    """One input file: matrices ``first`` to ``first + count`` of the stack.

    ``identity`` changes when the content may have changed: that of a file (`identity.identity_of`),
    or the recipe of the synthetic stack; empty for a file that a receipt vouches for.
    """

    path: str
    first: int
    count: int
    identity: str


@dataclass(frozen=True)
class Stack:
    """A whole input: N matrices of one shape ``(m, k)`` and one dtype, over one file or many."""

    sources: tuple[Source, ...]
    matrices: int
    shape: tuple[int, int]
    dtype: str

    def between(self, start: int, stop: int) -> list[Source]:
        """The files that hold matrices ``start`` to ``stop``."""
        if len(self.sources) == self.matrices:  # one matrix a file: no search
            return list(self.sources[start:stop])
        return [s for s in self.sources if s.first < stop and start < s.first + s.count]


def shard_count(matrices: int, total_bytes: int, shards: int | str, shard_bytes: int) -> int:
    """Number of shards that the config asks for.

    Under ``auto``, as many as keep each at ``shard_bytes`` or less where a matrix allows it, at
    most :data:`MAX_AUTO_SHARDS`, and never more than there are matrices.
    """
    if shards != "auto":
        return int(shards)
    wanted = -(-total_bytes // shard_bytes)
    return max(1, min(wanted, MAX_AUTO_SHARDS, matrices))


def cut(matrices: int, shards: int) -> list[tuple[int, int]]:
    """Cut ``range(matrices)`` into contiguous ``(start, stop)`` runs.

    Every matrix is in exactly one run, and sizes differ by at most one.

    Raises
    ------
    ValueError
        Unless ``1 <= shards <= matrices``.
    """
    if not 1 <= shards <= matrices:
        raise ValueError(f"cannot cut {matrices} matrices into {shards} shards")
    return list(pairwise(matrices * i // shards for i in range(shards + 1)))


def shard_ids(shards: int) -> list[str]:
    """Zero-padded decimal ids, five digits or as many as are needed."""
    width = max(5, len(str(shards - 1)))
    return [f"{i:0{width}}" for i in range(shards)]


def minutes(total_bytes: int, flop: int = 0) -> int:
    """Run time to ask for, in minutes: start-up, bytes over a slow disk, work on a slow CPU."""
    seconds = total_bytes / _SLOW_BYTES_PER_S + flop / _SLOW_FLOP_PER_S
    return _START_MINUTES + int(seconds / 60)


def table(problem: Problem, shards: int, keep: str, cuda: bool) -> list[Shard]:
    """The rows of the plan, digests left empty.

    Parameters
    ----------
    cuda
        Whether the shards may be computed on a GPU.

    Raises
    ------
    ValueError
        Unless ``1 <= shards <= problem.matrices``.
    """
    runs = cut(problem.matrices, shards)
    own = {
        count: {
            "bytes": count * problem.matrix_bytes,
            "product_bytes": sizes.result_bytes(problem, count, keep),
            "memory": sizes.task_memory(problem, count, keep, cuda),
            "device_memory": sizes.device_memory(problem, count, keep) if cuda else 0,
        }
        for count in {stop - start for start, stop in runs}  # one or two of them
    }
    return [
        Shard(shard=shard, start=start, stop=stop, **own[stop - start])
        for shard, (start, stop) in zip(shard_ids(shards), runs, strict=True)
    ]
