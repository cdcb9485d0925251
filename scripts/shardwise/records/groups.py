"""Look at many shards in threads, as a network disk answers many requests at once."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

_THREADS = 8
_MOST_AT_ONCE = 1000  # handing over one tiny shard takes as long as reading it

_T = TypeVar("_T")
_R = TypeVar("_R")


def look_at(
    look: Callable[[_T], _R], items: Iterable[_T],
    threads: int = _THREADS, at_once: int = _MOST_AT_ONCE,
) -> Iterator[tuple[_T, _R]]:  # fmt: skip
    """Each item with what ``look`` found for it, in order; a thread takes ``at_once`` items.

    However many items there are, only a few groups are in memory at a time.
    """
    rest = iter(items)
    groups = iter(lambda: list(islice(rest, at_once)), [])
    with ThreadPoolExecutor(threads, "look") as pool:
        while ahead := list(islice(groups, 2 * threads)):
            found = pool.map(lambda group: list(map(look, group)), ahead)
            for group, answers in zip(ahead, found, strict=True):
                yield from zip(group, answers, strict=True)
