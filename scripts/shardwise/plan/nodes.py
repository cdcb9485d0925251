"""Which nodes of the tree of a sum the products of a shard make up; numerics/tree.py adds them."""

from collections.abc import Iterator

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
