"""Loops over many parts, shared by the processors that this process may use, and BLAS alone."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from contextvars import copy_context
from functools import cache, partial
from itertools import pairwise
from typing import Any


def split(count: int, call: Callable[[int, int], object], most: int | None = None) -> None:
    """Call ``call(low, high)`` for ranges that cover ``count`` parts, in ``most`` threads or less.

    They run in parallel only while ``call`` releases the GIL.
    """
    number = min(count, most or count, processors())
    if number < 2:
        call(0, count)
        return
    ends = [count * i // number for i in range(number + 1)]
    # Each thread runs in a copy of this context, which holds NumPy's errstate.
    others = [
        _pool().submit(copy_context().run, call, low, high) for low, high in pairwise(ends[1:])
    ]
    call(0, ends[1])
    for other in others:
        other.result()


def single_threaded_blas() -> Callable[[], AbstractContextManager[Any]]:
    """A context in which BLAS uses one thread: with more, the bits depend on their number."""
    from threadpoolctl import ThreadpoolController  # only here: tasks on a GPU do not need it

    return partial(ThreadpoolController().limit, limits=1, user_api="blas")


def processors() -> int:
    """The number of threads: as the usual variable says, or one for each processor."""
    told = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return max(1, int(told)) if told.isdecimal() else len(os.sched_getaffinity(0))


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(processors(), "numerics")
