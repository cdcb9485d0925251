"""The process in which a user's function is tried before any job: see `user_function.probe`.

It reads a matrix from stdin, has a child process call the function, and prints the outcome and the
child's exit status as JSON. Only the child loads NumPy and the user's file.
"""

import io
import json
import os
import signal
import sys
from functools import partial
from typing import Any

from shardwise.errors import ShardwiseError, Terminated, terminate, verdict
from shardwise.processes import contain

_WORDS_LETTERS = 100_000


def main(spec: str, *depends: str) -> None:
    """Try a function on the matrix from stdin."""
    signal.signal(signal.SIGTERM, terminate)
    contain.end_with_parent(signal.SIGTERM)
    try:
        ending = contain.run(partial(_try, spec, depends, sys.stdin.buffer.read()))
        os.write(1, json.dumps(ending).encode())
    except (Terminated, BrokenPipeError):  # the caller of the trial has ended, or waits no longer
        sys.exit(128 + signal.SIGTERM)


def _try(spec: str, depends: tuple[str, ...], matrix: bytes) -> tuple[Any, ...]:
    """Call the function; exit code, message, and the result's shape and element type, or None."""
    import numpy as np

    from shardwise.plan import user_function
    from shardwise.plan.problem import product_dtype

    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        block = np.load(io.BytesIO(matrix), allow_pickle=False)
        result = user_function.call(user_function.load(spec, None, depends), np, block, 0)
    except (ShardwiseError, MemoryError) as error:
        code, words = verdict(error)
        return code, words[:_WORDS_LETTERS], None, None
    return 0, "", result.shape[1:], product_dtype(result.dtype.name)
