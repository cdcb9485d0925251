"""Loops that numba compiles, kept for other processes."""

import hashlib
import inspect
import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import llvmlite.binding
import numba


def loop(function: Callable, signature: tuple) -> Callable:
    """A function compiled for one signature, by an earlier process if there is a folder for it.

    Parameters
    ----------
    function
        A function of a module; what it calls stands in the same file.
    signature
        numba's types of its parameters.
    """
    kept, before = folder(function, signature), numba.config.CACHE_DIR
    if kept is not None:
        made = numba.njit(nogil=True)(function)
        numba.config.CACHE_DIR = str(kept)
        # A full disk, or what a crash left of a file, must not end a run.
        with suppress(OSError, EOFError, RuntimeError, pickle.UnpicklingError):
            made.enable_caching()
            made.compile(signature)
        numba.config.CACHE_DIR = before
        if made.signatures:
            return made
    made = numba.njit(nogil=True)(function)
    made.compile(signature)
    return made


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
