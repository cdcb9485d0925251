"""Where NaN or Inf is: in the user's own files, or in the products of a run."""

import time

import numpy as np

from shardwise.errors import IntegrityError, some
from shardwise.files.extents import OpenFiles
from shardwise.plan import memory
from shardwise.plan.identity import InputFiles
from shardwise.plan.plan import Plan, Source, between
from shardwise.plan.stack import StackReader

_SEARCH_SECONDS = 60.0


def find(
    plan: Plan, key: str, start: int, stop: int, inputs: InputFiles | None = None
) -> str | None:
    """Describe the first non-finite element of some matrices, which are read again; None if none.

    ``key`` is ``input`` or ``right``; a B that all matrices share is matrix 0 of ``right``. The
    files that are read are noted in ``inputs``.
    """
    dtype = np.dtype(plan.dtype).newbyteorder("<")
    shape = (key == "right" and plan.problem.right) or plan.problem.left
    if dtype.kind not in "fc":
        return None
    stack = StackReader(_sources(plan, key, start, stop), shape, plan.dtype, inputs)
    files, size = OpenFiles(stack.inputs.compare), shape[0] * shape[1]
    step = max(1, memory.STEP_BYTES // dtype.itemsize)
    for first in range(start * size, stop * size, step):
        numbers = np.empty(min(step, stop * size - first), dtype)
        stack.read_into(files, numbers.view(np.uint8), first * dtype.itemsize)
        wild = ~np.isfinite(numbers)
        if wild.any():
            at = int(wild.argmax())
            matrix, row, column = map(int, np.unravel_index(first + at, (stop, *shape)))
            where = files_of(plan, key, matrix, matrix + 1)
            return f"{numbers[at]} at row {row}, column {column} of {where} (counted from 0)"
    return None


def _sources(plan: Plan, key: str, start: int, stop: int) -> list[Source]:
    """The files that hold some matrices of A or B."""
    if key == "input":
        return plan.sources_of(start, stop)
    return between(plan.facts.right_sources, start, stop)


def files_of(plan: Plan, key: str, start: int, stop: int) -> str:
    """Where some matrices of A or B lie, for a message."""
    sources = _sources(plan, key, start, stop)
    return some((_matrices(source, start, stop) for source in sources), 4)


def _matrices(source: Source, start: int, stop: int) -> str:
    """The place of some matrices of the stack in a file, for a message."""
    if source.count == 1:
        return source.path
    first, last = max(start, source.first), min(stop, source.first + source.count) - 1
    first, last = first - source.first, last - source.first
    which = f"matrix {first}" if first == last else f"matrices {first} to {last}"
    return f"{which} of {source.path}"


def find_product(plan: Plan, element: int) -> tuple[bool, str]:
    """Search the shards' files for what makes an element of the result NaN or infinite.

    Returns
    -------
    tuple[bool, str]
        Whether the input is to blame (or cannot be read), and words to follow the element's name.
    """
    until = time.monotonic() + _SEARCH_SECONDS
    for shard in plan.shards.values():
        rows = np.load(plan.results.product(shard.name), "r", allow_pickle=False)
        wild = np.flatnonzero(~np.isfinite(rows.reshape(len(rows), -1)[:, element]))
        if wild.size and plan.settings.keep == "products":
            matrix = shard.start + int(wild[0])
            return _cause(plan, f"the product of matrix {matrix}", matrix, matrix + 1)
        if wild.size:
            return _cause(plan, f"the sum of shard {shard.shard}", shard.start, shard.stop)
        if time.monotonic() > until:
            return False, f"; the product at fault was not found within {_SEARCH_SECONDS:.0f} s"
    return False, (
        ", although all products are finite there; scale the input, leave this statistic out, "
        "or set nonfinite: allow"
    )


def _cause(plan: Plan, what: str, start: int, stop: int) -> tuple[bool, str]:
    """Where the input of some products is NaN or Inf, or that it is finite."""
    for key in ("input", "right") if plan.problem.right else ("input",):
        low, high = (0, 1) if key == "right" and plan.problem.shared_right else (start, stop)
        try:
            place = find(plan, key, low, high)
        except (OSError, IntegrityError) as error:
            return True, f": so is {what}; the cause cannot be found: {error}"
        if place:
            return True, (
                f": so is {what}, which was computed under nonfinite: allow. {key}: {place}; "
                "correct it, or set nonfinite: allow"
            )
    where = files_of(plan, "input", start, stop)
    return False, (
        f": so does {what}, although the input ({where}) is finite; scale the input, or set "
        "nonfinite: allow"
    )
