"""Loops over many parts, shared by the processors that this process may use."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cache
from itertools import pairwise


def split(count: int, call: Callable[[int, int], object]) -> None:
    """Call ``call(low, high)`` for ranges that cover ``count`` parts, each in a thread.

    Threads run in parallel only while ``call`` releases the GIL.
    """
    number = min(count, _processors())
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


def _processors() -> int:
    """The number of threads of NumPy's BLAS: as its variables say, or one for each processor."""
    told = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS", "")
    return max(1, int(told)) if told.isdecimal() else len(os.sched_getaffinity(0))


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_processors(), "numerics")
