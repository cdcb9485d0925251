"""Loops that numba compiles, kept for other processes."""

import hashlib
import inspect
import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_Function = Callable[..., Any]

numba.config.DISABLE_JIT = 0  # in Python these loops take a hundred times as long, and do not wrap


@intrinsic  # type: ignore[untyped-decorator]
def wide(typing: Any, number: Any) -> Any:
    """A float16, as the uint16 of its bits, a float32 or a float64 as float64.

    Where the processor cannot widen a float16, its exponent is moved to its place by a
    multiplication, which is exact.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (value,), single, double, word = arguments, ir.FloatType(), ir.DoubleType(), ir.IntType(32)
        if number == types.float64:
            return value
        if number == types.float32:
            return builder.fpext(value, double)
        triple, _, features = context.codegen().magic_tuple()
        if "+f16c" in features or triple.startswith("aarch64"):
            half = builder.bitcast(value, ir.HalfType())
            return builder.fpext(builder.fpext(half, single), double)
        bits = builder.zext(value, word)
        sign = builder.shl(builder.and_(bits, word(0x8000)), word(16))
        modulus = builder.shl(builder.and_(bits, word(0x7FFF)), word(13))
        small = builder.bitcast(builder.or_(sign, modulus), single)
        wild = builder.icmp_unsigned(">=", modulus, word(0x7C00 << 13))  # infinite or NaN
        kept = builder.bitcast(builder.or_(builder.or_(sign, modulus), word(0x7F800000)), single)
        finite = builder.fmul(builder.fpext(small, double), double(2.0**112))
        return builder.select(wild, builder.fpext(kept, double), finite)

    return types.float64(number), generate


def loop(function: _Function, *signature: Any, **options: Any) -> _Function:
    """A function compiled for numba's types, by an earlier process if there is a folder for it.

    What the function calls stands in the same file, or here. Options are those of ``njit``.
    """
    compiled: Any = numba.njit(nogil=True, **options)(function)
    cache, before = folder(function, signature), numba.config.CACHE_DIR
    if cache is not None:
        numba.config.CACHE_DIR = str(cache)
        try:
            compiled.enable_caching()
            compiled.compile(signature)
        except (OSError, EOFError, RuntimeError, pickle.UnpicklingError):
            pass  # a full disk, or what a crash left of a file, must not end a run
        finally:
            numba.config.CACHE_DIR = before
    if not compiled.signatures:
        compiled = numba.njit(nogil=True, **options)(function)
        compiled.compile(signature)
    return compiled  # type: ignore[no-any-return]


def folder(function: _Function, signature: tuple[Any, ...]) -> Path | None:
    """A folder for the code of one source, processor and signature; None if none can be written.

    numba keeps all variants of a function under one index, which it replaces without a lock, and
    before the code: with several processes it may name another's code, or that of an older source.
    Where a folder has one variant only, all write the same.
    """
    cpu = llvmlite.binding.get_host_cpu_name() + llvmlite.binding.get_host_cpu_features().flatten()
    source = Path(inspect.getfile(function)).read_bytes() + Path(__file__).read_bytes()
    variant = source + f"{signature} {cpu} {numba.__version__}".encode()
    leaf = f"{function.__name__.strip('_')}-{hashlib.sha256(variant).hexdigest()[:16]}"
    bases = numba.config.CACHE_DIR, Path(__file__).with_name("__pycache__"), "~/.cache/shardwise"
    for base in filter(None, bases):
        with suppress(OSError, RuntimeError):  # the latter where nobody's home is known
            cache = Path(base).expanduser() / leaf
            cache.mkdir(parents=True, exist_ok=True)
            if os.access(cache, os.W_OK):
                return cache
    return None
