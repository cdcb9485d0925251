"""Many shards looked at by threads, some at a time: a network disk answers many at once."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

_THREADS = 8
_MOST_AT_ONCE = 1000  # to hand over one tiny shard takes as long as to read it

_T = TypeVar("_T")
_R = TypeVar("_R")


def look_at(
    look: Callable[[list[_T]], list[_R]], items: Iterable[_T],
    threads: int = _THREADS, at_once: int = _MOST_AT_ONCE,
) -> Iterator[tuple[_T, _R]]:  # fmt: skip
    """Each item with what ``look`` has found for it, in order; ``look`` takes ``at_once`` items.

    However many items there are, only some groups of them are under way.
    """
    rest, ahead = iter(items), range(2 * threads)
    with ThreadPoolExecutor(threads, "look") as pool:
        while groups := [group for _ in ahead if (group := list(islice(rest, at_once)))]:
            try:
                found = pool.map(look, groups)
            except RuntimeError:  # as Python ends it starts no thread; a run says its last words
                found = map(look, groups)
            for group, answers in zip(groups, found, strict=True):
                yield from zip(group, answers, strict=True)
