"""Rows of products are added on a GPU by the kernels of ``tree.cu``."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

NUMBERS = {"float16": "Half", "float32": "float", "float64": "double"}
_THREADS = 256
_LEVELS = 5  # that are added in registers: 32 products are read once


def fold(xp: Any, rows: Any, weights: Any, out: Any) -> None:
    """Add rows as the tree of `tree` does, on the current stream of ``xp``, cupy.

    ``rows`` are ``(n * 2**k, width)`` of float16, float32 or float64, contiguous; ``weights`` None,
    or float64 ``(n * 2**k,)``; ``out`` is ``(n, width)`` of float64.
    """
    level = (rows.size // out.size).bit_length() - 1
    if level > _LEVELS:
        narrower = xp.empty((len(rows) >> _LEVELS, rows.shape[1]), out.dtype)
        fold(xp, rows, weights, narrower)
        fold(xp, narrower, None, out)
        return
    weighted = weights is not None
    kernel = module(xp, weighted).get_function(_name(rows.dtype.name, level, weighted))
    arrays = rows, weights if weighted else out  # which no kernel without weights looks at
    sizes = np.int64(out.size), np.int64(rows.shape[1])
    kernel((-(-out.size // _THREADS),), (_THREADS,), (*arrays, *sizes, out))


@cache
def module(xp: Any, weighted: bool) -> Any:
    """The compiled kernels; those of weighted sums by themselves."""
    source = Path(__file__).with_name("tree.cu").read_text("utf-8")
    names = [_name(dtype, k, weighted) for dtype in NUMBERS for k in range(_LEVELS + 1)]
    names += [] if weighted else [f"columns<{number}>" for number in NUMBERS.values()]
    return xp.RawModule(code=source, options=("-std=c++17",), name_expressions=names)


def _name(dtype: str, level: int, weighted: bool) -> str:
    return f"fold<{NUMBERS[dtype]}, {level}, {str(weighted).lower()}>"
