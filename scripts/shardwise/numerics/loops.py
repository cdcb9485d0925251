"""The loop that numba compiles: it adds rows of products in the order of the tree.

Elements are widened to float64 in registers, so no matrix is copied, and each is read once for all
levels of the tree. Rows are added a tile of elements at a time: four rows in registers, whose sum
waits in the L1 cache until the other half of its node is there.
"""

import hashlib
import os
import pickle
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir
from numba import types, uint64
from numba.core.registry import cpu_target
from numba.extending import intrinsic

numba.config.DISABLE_JIT = 0  # in Python this loop takes a hundred times as long, and does not wrap

_TILE = 512  # elements of a row: a float64 for each of them and each level fits the L1 cache
_LEVELS = 64


@intrinsic  # type: ignore[untyped-decorator]
def _wide(typing: Any, number: Any) -> Any:
    """Widen a float16 (given as the uint16 of its bits), a float32 or a float64 to float64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (value,) = arguments
        if number == types.float64:
            return value
        if number == types.uint16:
            value = builder.fpext(builder.bitcast(value, ir.HalfType()), ir.FloatType())
        return builder.fpext(value, ir.DoubleType())

    return types.float64(number), generate


def _can_widen_halves() -> bool:
    """Whether this processor has an instruction that widens a float16."""
    triple, _, features = cpu_target.target_context.codegen().magic_tuple()
    return "+f16c" in features or triple.startswith("aarch64")


def fold(rows: np.ndarray, out: np.ndarray) -> None:
    """Add rows in the order of the binary tree of tree.py.

    ``rows`` are ``(2**k, width)`` of float16, float32 or float64, contiguous; ``out`` is
    ``(width,)`` of float64.
    """
    half = rows.dtype == np.float16
    if half and not _can_widen_halves():
        rows, half = rows.astype(np.float32), False
    words = rows.reshape(-1).view(np.uint16 if half else rows.dtype)
    words.flags.writeable = False
    adding(words.dtype.name)(words, len(rows), out)


@cache
def adding(name: str) -> Any:
    """The loop for words of this type: compiled, or loaded as an earlier process cached it."""
    words = types.Array(getattr(types, name), 1, "C", readonly=True)
    signature = words, types.int64, types.Array(types.float64, 1, "C")
    compiled: Any = numba.njit(nogil=True)(_fold)
    before = numba.config.CACHE_DIR
    try:
        numba.config.CACHE_DIR = str(folder(name))
        compiled.enable_caching()
        compiled.compile(signature)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError):
        # No folder is writable, the disk is full, or a crash cut a file short: no end of a run.
        compiled = numba.njit(nogil=True)(_fold)
        compiled.compile(signature)
    finally:
        numba.config.CACHE_DIR = before
    return compiled


def folder(name: str) -> Path:
    """The cache folder of one source, processor and type; OSError if none is writable.

    numba keeps all variants of a function under one index. It replaces the index without a lock,
    and before the code, so with several processes the index may name another variant's code, or
    that of an older source. With one variant per folder, all processes write the same.
    """
    cpu = llvmlite.binding.get_host_cpu_name() + llvmlite.binding.get_host_cpu_features().flatten()
    variant = Path(__file__).read_bytes() + f"{cpu} {numba.__version__}".encode()
    leaf = f"{name}-{hashlib.sha256(variant).hexdigest()[:16]}"
    bases = numba.config.CACHE_DIR, Path(__file__).with_name("__pycache__"), "~/.cache/shardwise"
    for base in filter(None, bases):
        with suppress(OSError, RuntimeError):  # the latter if no home folder is known
            cache = Path(base).expanduser() / leaf
            cache.mkdir(parents=True, exist_ok=True)
            if os.access(cache, os.W_OK):
                return cache
    raise OSError("no folder is writable")


def _fold(words: np.ndarray, rows: int, out: np.ndarray) -> None:
    stride, waiting, level = uint64(len(out)), np.empty((_LEVELS, _TILE)), 0
    step = 4 if rows >= 4 else 1
    for low in range(0, len(out), _TILE):
        tile = uint64(min(_TILE, len(out) - low))
        now = np.empty(tile)
        for group in range(rows // step):
            first = uint64(step * group) * stride + uint64(low)
            if step == 1:
                for i in range(tile):
                    now[i] = _wide(words[first + i])
            else:  # a separate loop, so that LLVM vectorizes it
                for i in range(tile):
                    at = first + i
                    left = _wide(words[at]) + _wide(words[at + stride])
                    at += stride + stride
                    now[i] = left + (_wide(words[at]) + _wide(words[at + stride]))
            level, halves = 0, group
            while halves & 1:
                for i in range(tile):
                    now[i] = waiting[level, i] + now[i]
                level, halves = level + 1, halves >> 1
            for i in range(tile):
                waiting[level, i] = now[i]
        for i in range(tile):
            out[uint64(low) + i] = waiting[level, i]
