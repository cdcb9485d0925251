"""Where in the user's own files a NaN or Inf, or a matrix that is refused, is."""

import numpy as np

from shardwise.errors import BadMatrix, InputError
from shardwise.files.extents import OpenFiles
from shardwise.plan import memory
from shardwise.plan.plan import Plan, Source, between
from shardwise.plan.stack import InputFiles, StackReader


def explain(plan: Plan, error: BadMatrix, inputs: InputFiles) -> InputError:
    """The error with the first element of the factors that is not finite, else with the file of A.

    The factors are read again; ``inputs`` notes their files.
    """
    problem, dtype = plan.problem, np.dtype(plan.problem.dtype).newbyteorder("<")
    factors = [("input", error.matrix, problem.left, plan.sources)]
    if problem.right:
        matrix = 0 if problem.shared_right else error.matrix
        factors.append(("right", matrix, problem.right, plan.facts.right_sources))
    step = max(1, memory.STEP_BYTES // dtype.itemsize)
    for key, matrix, (rows, columns), sources in factors:
        stack = StackReader(between(sources, matrix, matrix + 1), (rows, columns), dtype, inputs)
        files, begin = OpenFiles(inputs.compare), matrix * rows * columns
        for first in range(0, rows * columns, step):
            numbers = np.empty(min(step, rows * columns - first), dtype)
            stack.read_into(files, numbers.view(np.uint8), (begin + first) * dtype.itemsize)
            wild = ~np.isfinite(numbers)
            if wild.any():
                at = int(wild.argmax())
                row, column = divmod(first + at, columns)
                return InputError(
                    f"{key}: matrix {matrix} holds NaN or Inf: {numbers[at]} at row {row}, column "
                    f"{column} of {_place(sources, matrix)} (counted from 0); correct it, or set "
                    "nonfinite: allow"
                )
    return InputError(f"{error.what} ({_place(plan.sources, error.matrix)}); {error.cure}")


def _place(sources: tuple[Source, ...], matrix: int) -> str:
    (source,) = between(sources, matrix, matrix + 1)
    return source.path if source.count == 1 else f"matrix {matrix - source.first} of {source.path}"
