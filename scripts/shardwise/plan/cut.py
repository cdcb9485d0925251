"""Arithmetic on counts: where a stack is cut, and the nodes of the tree that sums make up."""

from collections.abc import Iterator

# Under ``shards: auto`` shards grow before their number exceeds this, as each may cost a job.
MAX_AUTO_SHARDS = 1000
# In any plan: a table of this many takes some hundred MB, and no scheduler runs them all.
MAX_SHARDS = 1_000_000


def power_of_two(most: int) -> int:
    """The largest power of two up to a number, at least 1."""
    return 1 << max(1, most).bit_length() - 1


def cut(matrices: int, shards: int) -> list[range]:
    """Cut ``range(matrices)`` into ``shards`` runs, whose sizes differ by at most one."""
    return [range(matrices * i // shards, matrices * (i + 1) // shards) for i in range(shards)]


def cut_aligned(matrices: int, matrix_bytes: int, shard_bytes: int) -> list[range]:
    """Cut ``range(matrices)`` so that the sum of each run but the last is one to three nodes.

    The size of a run is ``k * 2**j`` with ``4 <= k <= 7``, or 1 to 3: the largest that fits in
    ``shard_bytes``, doubled until there are few enough runs. So a stack that grows keeps its runs.
    """
    most = max(1, shard_bytes // matrix_bytes)
    zeros = max(0, most.bit_length() - 3)
    size = most >> zeros << zeros
    while matrices > MAX_AUTO_SHARDS * size:
        size *= 2
    return [range(first, min(first + size, matrices)) for first in range(0, matrices, size)]


def minutes(total_bytes: int, flop: int = 0) -> int:
    """Run time to ask for, in minutes: a limit that a slow disk and a slow CPU keep too."""
    return 10 + int((total_bytes / 50e6 + flop / 5e9) / 60)


Node = tuple[int, int]
"""Level and index: the products ``index * 2**level`` to the next multiple of ``2**level``."""


def node_span(level: int, index: int) -> tuple[int, int]:
    """The first product of a node, and the one after its last."""
    return index << level, (index + 1) << level


def cover(start: int, stop: int) -> Iterator[Node]:
    """The fewest nodes that hold the products from ``start`` to ``stop``, in their order."""
    while start < stop:
        level = (stop - start).bit_length() - 1
        if start:
            level = min(level, (start & -start).bit_length() - 1)
        yield level, start >> level
        start += 1 << level


def count_nodes(start: int, stop: int) -> int:
    """How many nodes :func:`cover` gives."""
    top = (start ^ stop).bit_length() - 1
    middle = stop >> top << top
    return (middle - start).bit_count() + (stop - middle).bit_count()


def most_held(start: int, stop: int) -> int:
    """The most nodes that a tree holds while it takes these products in turn.

    The node that is being made counts. The tree holds one node per level up to the highest level
    at which ``start`` begins a node, and two per level above it.
    """
    last = stop - start - 1
    aligned = (start & -start).bit_length() - 1 if start else last.bit_length()
    beyond = (last >> aligned) + 2
    pairs = beyond.bit_length() - 2
    return min(aligned, last.bit_length()) + 2 * pairs + (beyond >> pairs) - 1
