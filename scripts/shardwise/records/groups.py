"""Many shards looked at by threads, some at a time: a network disk answers many at once."""

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

_THREADS = 8
_MOST_AT_ONCE = 1000  # to hand over one tiny shard takes as long as to read it
_FIRST = 32  # so many tell whether the disk makes one wait
_WAITS = 2.0  # times as long as it computes: then threads pay, although they take turns

_T = TypeVar("_T")
_R = TypeVar("_R")


def look_at(
    look: Callable[[list[_T]], list[_R]], items: Iterable[_T],
    threads: int | None = None, at_once: int = _MOST_AT_ONCE,
) -> Iterator[tuple[_T, _R]]:  # fmt: skip
    """Each item with what ``look`` has found for it, in order; ``look`` takes ``at_once`` items.

    However many items there are, only some groups of them are under way. Without a number of
    threads there are none while the disk answers at once, as small files of a local one do.
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
            except RuntimeError:  # as Python ends it starts no thread; a run says its last words
                found = map(look, groups)
            for group, answers in zip(groups, found, strict=True):
                yield from zip(group, answers, strict=True)
