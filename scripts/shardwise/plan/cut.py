"""Arithmetic on counts and bytes: where a stack is cut, and how long a job may take."""

from itertools import pairwise

from shardwise.files.paths import id_digits

# Under ``shards: auto`` shards grow before their number exceeds this, as each may cost a job.
MAX_AUTO_SHARDS = 1000
# In any plan: a table of this many takes some hundred MB, and no scheduler runs them all.
MAX_SHARDS = 1_000_000
# Rates that a slow node still reaches; run times asked for are a limit, not a forecast.
_SLOW_BYTES_PER_S = 50e6
_SLOW_FLOP_PER_S = 5e9
_START_MINUTES = 10


def cut(matrices: int, shards: int) -> list[range]:
    """Cut ``range(matrices)`` into ``shards`` runs, whose sizes differ by at most one."""
    return [range(*ends) for ends in pairwise(matrices * i // shards for i in range(shards + 1))]


def cut_aligned(matrices: int, matrix_bytes: int, shard_bytes: int) -> list[range]:
    """Cut ``range(matrices)`` so that the sum of each run is one to three nodes of the tree.

    The size of a run is ``k * 2**j`` with ``4 <= k <= 7``, or 1 to 3: the largest that fits in
    ``shard_bytes``, or 1 if not even one matrix fits. It is doubled until there are
    :data:`MAX_AUTO_SHARDS` runs or fewer. Only the last run may be shorter, with more nodes. So a
    stack that grows keeps its other runs, until the size doubles.
    """
    most = max(1, shard_bytes // matrix_bytes)
    zeros = max(0, most.bit_length() - 3)
    size = most >> zeros << zeros
    while matrices > MAX_AUTO_SHARDS * size:
        size *= 2
    return [range(first, min(first + size, matrices)) for first in range(0, matrices, size)]


def shard_ids(shards: int) -> list[str]:
    """Zero-padded decimal ids."""
    width = id_digits(shards)
    return [f"{i:0{width}}" for i in range(shards)]


def minutes(total_bytes: int, flop: int = 0) -> int:
    """Run time to ask for, in minutes: start-up, bytes over a slow disk, work on a slow CPU."""
    seconds = total_bytes / _SLOW_BYTES_PER_S + flop / _SLOW_FLOP_PER_S
    return _START_MINUTES + int(seconds / 60)
