"""Who is to blame for the failure of a shard: its input, the device, or the user's function."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from shardwise import errors, host
from shardwise.devices import choose
from shardwise.errors import BadMatrix, DeviceFailed, InputError, IntegrityError
from shardwise.multiply import copy
from shardwise.plan.identity import InputFiles
from shardwise.plan.plan import Plan, Shard
from shardwise.plan.problem import Problem
from shardwise.records import judge, nonfinite, receipts

_WIDER = {"float16": "float32", "float32": "float64", "complex64": "complex128"}


@contextmanager
def device(xp: Any) -> Iterator[None]:
    """Turn errors of this process's device into errors of a shard."""
    try:
        yield
    except (DeviceFailed, *errors.device_errors(xp)) as error:
        uuid = choose.taken_uuid()
        if uuid is None:  # a CPU, and this host has no other to go to
            raise IntegrityError(str(error)) from error
        what = str(error) if isinstance(error, DeviceFailed) else f"{error}; nothing was written"
        suspect = choose.is_fault(error) or getattr(error, "suspect", False)
        raise DeviceFailed(f"{what} ({uuid} of {host.node()})", suspect) from error


def not_finite(problem: Problem, matrix: int) -> BadMatrix:
    """The error for a product that is not finite; `input_file` looks whether its factors are."""
    dtype, cure = problem.dtype, "correct it"
    if problem.result:
        what = (
            f"product: {problem.product} returned NaN or Inf for matrix {matrix}, which is finite"
        )
    else:
        what = f"the product of matrix {matrix} overflows {dtype}, although its factors are finite"
        cure = f"save the input as {_WIDER[dtype]} or scale it" if dtype in _WIDER else "scale it"
    return BadMatrix(what, f"{cure}, or set nonfinite: allow", matrix)


@contextmanager
def input_file(plan: Plan, shard: Shard, inputs: InputFiles) -> Iterator[None]:
    """If a batch is refused for one of its matrices, say where in the user's files the cause is.

    Raises
    ------
    InputError
        With file, row and column of a NaN or an infinity, or the file of a matrix without any.
    IntegrityError
        If the shard's copy is damaged.
    """
    try:
        yield
    except BadMatrix as error:
        for key in ("input", "right") if plan.problem.right else ("input",):
            matrix = 0 if key == "right" and plan.problem.shared_right else error.matrix
            if place := nonfinite.find(plan, key, matrix, inputs):
                raise InputError(
                    f"{key}: matrix {matrix} holds NaN or Inf: {place}; correct it, or set "
                    "nonfinite: allow"
                ) from error
        if plan.settings.materialize:
            path = plan.results.shard(shard.input_name)
            facts = judge.check_copy(plan, shard.shard).file
            if not receipts.passes(receipts.check_elements, path, facts):
                raise copy.damaged(plan, shard) from error
        place = nonfinite.file_of(plan, "input", error.matrix)
        raise InputError(f"{error.what} ({place}); {error.cure}") from error
