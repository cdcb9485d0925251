"""Look at many shards in threads, as a network disk answers many requests at once."""

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

_THREADS = 8
_MOST_AT_ONCE = 1000  # handing over one tiny shard takes as long as reading it
_FIRST = 32  # this many show whether the disk keeps us waiting
_WAITS = 2.0  # waiting this many times as long as computing: from there on threads pay off

_T = TypeVar("_T")
_R = TypeVar("_R")


def look_at(
    look: Callable[[list[_T]], list[_R]], items: Iterable[_T],
    threads: int | None = None, at_once: int = _MOST_AT_ONCE,
) -> Iterator[tuple[_T, _R]]:  # fmt: skip
    """Each item with what ``look`` found for it, in order; ``look`` takes ``at_once`` items.

    However many items there are, only a few groups are in memory at a time. If ``threads`` is None,
    none are started as long as the disk answers at once, as a local one does for small files.
    """
    rest, waits = iter(items), threads is not None
    first = min(_FIRST, at_once)
    while not waits and (group := list(islice(rest, first))):
        wall, computing = time.perf_counter(), time.thread_time()
        answers = look(group)
        wall, computing = time.perf_counter() - wall, time.thread_time() - computing
        waits, first = wall > _WAITS * computing, at_once
        yield from zip(group, answers, strict=True)
    ahead = range(2 * (threads or _THREADS))
    with ThreadPoolExecutor(threads or _THREADS, "look") as pool:
        while groups := [group for _ in ahead if (group := list(islice(rest, at_once)))]:
            try:
                found = pool.map(look, groups)
            except RuntimeError:  # Python is ending and starts no thread: the final message
                found = map(look, groups)
            for group, answers in zip(groups, found, strict=True):
                yield from zip(group, answers, strict=True)
