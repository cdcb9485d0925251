"""The process in which a user's function is tried before any job: see `user_function.probe`.

It reads one line of JSON and a matrix, has a child call the function, and prints as JSON how the
child has ended. NumPy and the user's file are loaded in the child alone.
"""

import io
import json
import os
import signal
import sys
from dataclasses import asdict
from functools import partial
from typing import Any

from shardwise.errors import InputError, ShardwiseError, Terminated, TryAgain, terminate
from shardwise.processes import contain

_WORDS_LETTERS = 100_000


def main() -> None:
    """Try the function that stdin names on the matrix that follows."""
    signal.signal(signal.SIGTERM, terminate)
    contain.end_with_parent(signal.SIGTERM)
    try:
        task = json.loads(sys.stdin.buffer.readline())
        ending = contain.run(partial(_try, task["spec"], sys.stdin.buffer.read()), task["limit"])
        os.write(1, json.dumps(asdict(ending)).encode())
    except (Terminated, BrokenPipeError):  # who asked for the trial has ended, by a Ctrl-C
        sys.exit(128 + signal.SIGTERM)


def _try(spec: str, matrix: bytes) -> dict[str, Any]:
    """What a function makes of a matrix, or why it makes nothing."""
    import numpy as np

    from shardwise.plan import user_function

    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        block = np.load(io.BytesIO(matrix), allow_pickle=False)
        result = user_function.call(user_function.load(spec), np, block, 0)
    except KeyboardInterrupt as error:  # no terminal can reach this session
        return {"code": InputError.exit_code, "words": f"product: {spec} failed: {error!r}"}
    except MemoryError:
        words = (
            f"product: {spec} ran out of memory on one matrix {block.shape[1:]}, where it is tried "
            "before any job; start snakemake on a machine with more"
        )
        return {"code": TryAgain.exit_code, "words": words}
    except ShardwiseError as error:
        return {"code": error.exit_code, "words": str(error)[:_WORDS_LETTERS]}
    return {"code": 0, "shape": result.shape[1:], "dtype": result.dtype.name}
