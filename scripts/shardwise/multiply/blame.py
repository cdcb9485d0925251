"""Who is to blame for the failure of a shard: its input, the device, or the user's function."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from shardwise import errors, host
from shardwise.devices import choose
from shardwise.errors import BadMatrix, DeviceFailed, InputError, IntegrityError, ShardwiseError
from shardwise.multiply.copy import how_to_repair
from shardwise.plan.identity import InputFiles
from shardwise.plan.plan import Plan, Shard
from shardwise.records import nonfinite

SUSPECT = "Suspect the device or its node's memory: start the run again, on another node if you can"


@contextmanager
def device_or_function(plan: Plan, xp: Any) -> Iterator[None]:
    """Turn errors of this process's device, or of the user's function, into errors of a shard."""
    try:
        yield
    except (DeviceFailed, *errors.device_errors(xp)) as error:
        raise _of_device(error, choose.taken_uuid()) from error
    except OSError as error:
        if error.errno != errno.EBADF or not plan.problem.result:
            raise
        raise InputError(
            f"product: your function {plan.problem.product} closed files that are not "
            f"its own ({error}); nothing was committed"
        ) from error


def _of_device(error: Exception, uuid: str | None) -> ShardwiseError:
    """The error to raise for a device error, naming the device; ``uuid`` is None on a CPU."""
    if uuid is None:  # this host has no other CPU to go to
        return IntegrityError(str(error))
    fault = choose.fault(error)
    suspect = fault is not None or getattr(error, "suspect", False)
    what = str(error) if isinstance(error, ShardwiseError) else f"{error}; nothing was written"
    where = f"{uuid} of {host.node()}" + (f", {fault}" if fault else "")
    return DeviceFailed(f"{what} ({where})", suspect)


@contextmanager
def input_file(plan: Plan, shard: Shard, inputs: InputFiles) -> Iterator[None]:
    """If a batch is refused for one of its matrices, say where in the user's files that matrix is.

    Raises
    ------
    InputError
        With file, row and column, as far as they are known.
    IntegrityError
        If the matrix is finite in these files: then the shard's copy of it is damaged.
    DeviceFailed
        If it is finite and there is no copy: the device or its node's memory may be to blame.
    """
    try:
        yield
    except BadMatrix as error:
        raise _with_place(plan, shard, inputs, error) from error


def _with_place(plan: Plan, shard: Shard, inputs: InputFiles, error: BadMatrix) -> ShardwiseError:
    key, start, stop = error.key, error.matrix, error.matrix + 1
    where = nonfinite.files_of(plan, "right" if key == "right" else "input", start, stop)
    if key == "product":
        return InputError(f"{error.what} ({where}); {error.cure}")
    with suppress(OSError, IntegrityError):  # the files may be gone by now
        place = nonfinite.find(plan, key, start, stop, inputs)
        if place is None:
            return _finite_in_file(plan, shard, error)
        where = place
    return InputError(f"{error.what}: {where}; {error.cure}")


def _finite_in_file(plan: Plan, shard: Shard, error: BadMatrix) -> ShardwiseError:
    if error.key == "input" and plan.settings.materialize:
        return IntegrityError(
            f"{plan.results.shard(shard.input_name)} is damaged: matrix {error.matrix} holds NaN "
            f"or Inf there, but none in the input; {how_to_repair(plan, shard)}"
        )
    return DeviceFailed(f"{error.what}, but its file does not; nothing was written. {SUSPECT}")
