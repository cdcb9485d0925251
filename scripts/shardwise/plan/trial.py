"""The process in which a user's function is tried before any job: see `user_function.probe`.

It reads a matrix, has a child call the function, and prints as JSON what that made of it, and how
it has ended. NumPy and the user's file are loaded in the child alone.
"""

import io
import json
import os
import signal
import sys
from functools import partial
from typing import Any

from shardwise.errors import InputError, ShardwiseError, Terminated, terminate, verdict
from shardwise.processes import contain

_WORDS_LETTERS = 100_000


def main(spec: str, *depends: str) -> None:
    """Try a function on the matrix from stdin."""
    signal.signal(signal.SIGTERM, terminate)
    contain.end_with_parent(signal.SIGTERM)
    try:
        ending = contain.run(partial(_try, spec, depends, sys.stdin.buffer.read()))
        os.write(1, json.dumps([ending.result, ending.status]).encode())
    except (Terminated, BrokenPipeError):  # who asked for the trial has ended, or waits no longer
        sys.exit(128 + signal.SIGTERM)


def _try(spec: str, depends: tuple[str, ...], matrix: bytes) -> tuple[Any, ...]:
    """What a function makes of a matrix, or why it makes nothing."""
    import numpy as np

    from shardwise.plan import user_function
    from shardwise.plan.problem import product_dtype

    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        block = np.load(io.BytesIO(matrix), allow_pickle=False)
        result = user_function.call(user_function.load(spec, None, depends), np, block, 0)
    except KeyboardInterrupt as error:  # no terminal can reach this session
        return InputError.exit_code, f"product: {spec} failed: {error!r}", None, None
    except (ShardwiseError, MemoryError) as error:
        code, words = verdict(error)
        return code, words[:_WORDS_LETTERS], None, None
    return 0, "", result.shape[1:], product_dtype(result.dtype.name)
