"""Who is to blame for the failure of a shard: its input, the device, or the user's function."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from shardwise import errors, host
from shardwise.devices import choose
from shardwise.errors import BadMatrix, DeviceFailed, InputError, IntegrityError
from shardwise.multiply.copy import how_to_repair
from shardwise.plan.identity import InputFiles
from shardwise.plan.plan import Plan, Shard
from shardwise.plan.problem import Problem
from shardwise.records import nonfinite

_WIDER = {"float16": "float32", "float32": "float64", "complex64": "complex128"}


@contextmanager
def device_or_function(plan: Plan, xp: Any) -> Iterator[None]:
    """Turn errors of this process's device, or of the user's function, into errors of a shard."""
    try:
        yield
    except (DeviceFailed, *errors.device_errors(xp)) as error:
        uuid = choose.taken_uuid()
        if uuid is None:  # a CPU, and this host has no other to go to
            raise IntegrityError(str(error)) from error
        what = str(error) if isinstance(error, DeviceFailed) else f"{error}; nothing was written"
        suspect = choose.is_fault(error) or getattr(error, "suspect", False)
        raise DeviceFailed(f"{what} ({uuid} of {host.node()})", suspect) from error
    except OSError as error:
        if error.errno != errno.EBADF or not plan.problem.result:
            raise
        raise InputError(
            f"product: your function {plan.problem.product} closed files that are not "
            f"its own ({error}); nothing was committed"
        ) from error


def not_finite(problem: Problem, name: str, matrix: int) -> BadMatrix:
    """The error for a ``left`` or ``right`` factor, or a ``product`` of finite factors."""
    key, cure, dtype = "input" if name == "left" else name, "correct it", problem.dtype
    what = f"{key}: matrix {matrix} holds NaN or Inf"
    if key == "right" and problem.shared_right:
        matrix, what = 0, "right: the matrix holds NaN or Inf"
    elif key == "product" and problem.result:
        what = (
            f"product: {problem.product} returned NaN or Inf for matrix {matrix}, which is finite"
        )
    elif key == "product":
        what = f"the product of matrix {matrix} overflows {dtype}, although its factors are finite"
        cure = f"save the input as {_WIDER[dtype]} or scale it" if dtype in _WIDER else "scale it"
    return BadMatrix(what, f"{cure}, or set nonfinite: allow", key, matrix)


@contextmanager
def input_file(plan: Plan, shard: Shard, inputs: InputFiles) -> Iterator[None]:
    """If a batch is refused for one of its matrices, say where in the user's files that matrix is.

    Raises
    ------
    InputError
        With file, row and column, as far as they are known.
    IntegrityError
        If the matrix is finite in these files: then the shard's copy of it is damaged, or memory.
    """
    try:
        yield
    except BadMatrix as error:
        key, matrix = error.key, error.matrix
        place: str | None = nonfinite.file_of(plan, key, matrix)
        if key == "product":
            raise InputError(f"{error.what} ({place}); {error.cure}") from error
        with suppress(OSError, IntegrityError):  # the files may be gone by now
            place = nonfinite.find(plan, key, matrix, inputs)
        if place is not None:
            raise InputError(f"{error.what}: {place}; {error.cure}") from error
        raise IntegrityError(
            f"{error.what}, but its file does not: suspect the copy in shards/, or the memory of "
            f"this node; {how_to_repair(plan, shard)}"
        ) from error
