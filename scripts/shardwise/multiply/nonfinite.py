"""Where in the user's own files a matrix, or a NaN or Inf in it, is."""

import numpy as np

from shardwise.files.extents import OpenFiles
from shardwise.plan import memory
from shardwise.plan.identity import InputFiles
from shardwise.plan.plan import Plan, Source, between
from shardwise.plan.stack import StackReader


def find(plan: Plan, key: str, matrix: int, inputs: InputFiles) -> str | None:
    """Describe the first non-finite element of a matrix, which is read again; None if none.

    ``key`` is ``input`` or ``right``; a B that all matrices share is matrix 0 of ``right``. The
    files that are read are noted in ``inputs``.
    """
    shape = (key == "right" and plan.problem.right) or plan.problem.left
    stack = StackReader([_source(plan, key, matrix)], shape, plan.dtype, inputs)
    dtype = np.dtype(plan.dtype).newbyteorder("<")
    files, size = OpenFiles(stack.inputs.compare), shape[0] * shape[1]
    step = max(1, memory.STEP_BYTES // dtype.itemsize)
    for first in range(0, size, step):
        numbers = np.empty(min(step, size - first), dtype)
        stack.read_into(files, numbers.view(np.uint8), (matrix * size + first) * dtype.itemsize)
        wild = ~np.isfinite(numbers)
        if wild.any():
            at = int(wild.argmax())
            row, column = divmod(first + at, shape[1])
            where = file_of(plan, key, matrix)
            return f"{numbers[at]} at row {row}, column {column} of {where} (counted from 0)"
    return None


def _source(plan: Plan, key: str, matrix: int) -> Source:
    """The file that holds a matrix of A or B."""
    if key == "right":
        return between(plan.facts.right_sources, matrix, matrix + 1)[0]
    return plan.sources_of(matrix, matrix + 1)[0]


def file_of(plan: Plan, key: str, matrix: int) -> str:
    """Where a matrix of A or B lies, for a message."""
    source = _source(plan, key, matrix)
    return source.path if source.count == 1 else f"matrix {matrix - source.first} of {source.path}"
