"""Loops that numba compiles, kept for other processes."""

import hashlib
import inspect
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba


def part(function: Callable) -> Callable:
    """A function that loops call, as numba's ``njit``; it stands in the same file as they."""
    with _configured(DISABLE_JIT=0):
        return numba.njit(nogil=True)(function)


def loop(function: Callable, signature: tuple) -> Callable:
    """A function compiled for one signature, by an earlier process if there is a folder for it.

    It is compiled in any case: NUMBA_DISABLE_JIT is for those who debug loops of their own. As
    Python these would take a hundred times as long, and integers would not wrap.

    Parameters
    ----------
    function
        A function of a module; what it calls stands in the same file.
    signature
        numba's types of its parameters.
    """
    kept = folder(function, signature)
    if kept is not None:
        made = part(function)
        # A full disk, or what a crash left of a file, must not end a run.
        broken = suppress(OSError, EOFError, RuntimeError, pickle.UnpicklingError)
        with _configured(DISABLE_JIT=0, CACHE_DIR=str(kept)), broken:
            made.enable_caching()
            made.compile(signature)
        if made.signatures:
            return made
    made = part(function)
    with _configured(DISABLE_JIT=0):
        made.compile(signature)
    return made


@contextmanager
def _configured(**values: Any) -> Iterator[None]:
    """For a while, other values in numba's settings."""
    before = {name: getattr(numba.config, name) for name in values}
    vars(numba.config).update(values)
    try:
        yield
    finally:
        vars(numba.config).update(before)


def folder(function: Callable, signature: tuple) -> Path | None:
    """A folder for the code of one source, processor and signature; None where none can be written.

    numba keeps all variants of a function under one index, which it replaces without a lock, and
    before the code: with several processes it may name another's code, or that of an older source.
    Where a folder has one variant only, all write the same.
    """
    cpu = llvmlite.binding.get_host_cpu_name() + llvmlite.binding.get_host_cpu_features().flatten()
    source = Path(inspect.getfile(function)).read_bytes()
    variant = source + f"{signature} {cpu} {numba.__version__}".encode()
    leaf = f"{function.__name__.strip('_')}-{hashlib.sha256(variant).hexdigest()[:16]}"
    bases = numba.config.CACHE_DIR, Path(__file__).with_name("__pycache__"), "~/.cache/shardwise"
    for base in filter(None, bases):
        with suppress(OSError, RuntimeError):  # the latter where nobody's home is known
            found = Path(base).expanduser() / leaf
            found.mkdir(parents=True, exist_ok=True)
            if os.access(found, os.W_OK):
                return found
    return None
