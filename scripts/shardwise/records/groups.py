"""Many shards looked at by threads, some at a time: a network disk answers many at once."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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
    rest = iter(items)
    with ThreadPoolExecutor(threads, "look") as pool:
        ahead: deque[tuple[list[_T], Future[list[_R]]]] = deque()
        while True:
            while len(ahead) < 2 * threads and (group := list(islice(rest, at_once))):
                ahead.append((group, _submit(pool, look, group)))
            if not ahead:
                return
            group, future = ahead.popleft()
            yield from zip(group, future.result(), strict=True)


def _submit(
    pool: ThreadPoolExecutor, look: Callable[[list[_T]], list[_R]], group: list[_T]
) -> Future[list[_R]]:
    """The work of a thread; done at once where Python ends and starts none.

    A run says its last words as Python ends.
    """
    try:
        return pool.submit(look, group)
    except RuntimeError:
        done: Future[list[_R]] = Future()
        done.set_result(look(group))
        return done
