"""Who is to blame for the failure of a shard: its input, the device, or the user's function."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from shardwise import errors
from shardwise.devices import choose, quarantine
from shardwise.errors import (
    BadMatrix,
    DeviceFailed,
    Disproven,
    InputError,
    IntegrityError,
    Misled,
    Quarantined,
    ShardwiseError,
    WrongInput,
    WrongProduct,
)
from shardwise.multiply.copy import how_to_repair
from shardwise.plan import nonfinite
from shardwise.plan.identity import InputFiles
from shardwise.plan.plan import Plan, Shard

SUSPECT = "Suspect the device, or the memory of its node: run snakemake again, elsewhere if you can"


@contextmanager
def device_or_function(
    plan: Plan, xp: Any, uuid: str | None, shard: str | None = None
) -> Iterator[None]:
    """Raise what a device or a function has done wrong as the error of a shard.

    A device whose own fault it is is put into quarantine.

    Parameters
    ----------
    uuid
        Of the device; None on a CPU.
    """
    try:
        yield
    except WrongInput as error:  # of the copy, the host or the device: that one is not blamed
        if uuid is None:
            raise
        raise Misled(str(error)) from error
    except (WrongProduct, DeviceFailed, *errors.device_errors(xp)) as error:
        raise device_failure(plan, error, uuid, shard) from error
    except OSError as error:
        if error.errno != errno.EBADF or not plan.problem.result:
            raise
        raise InputError(
            f"product: your function {plan.problem.product} closed files that are not "
            f"its own ({error}); nothing was committed"
        ) from error


def device_failure(
    plan: Plan, error: Exception, uuid: str | None, shard: str | None = None
) -> ShardwiseError:
    """An error that may be the device's, as it is raised; notes a device that is at fault."""
    is_ours = isinstance(error, ShardwiseError)
    message = f"{error}" if is_ours else f"device {uuid}: {error}; nothing was written"
    reason = choose.fault(error, uuid)
    disproven = isinstance(error, WrongProduct)
    if reason is None or uuid is None:  # a host has no other CPU to go to
        return WrongProduct(message) if disproven else DeviceFailed(message)
    entry = quarantine.note(plan.results, uuid, reason, shard)
    return (Disproven if disproven else Quarantined)(
        f"{message}. Now in quarantine for these results: {entry}. Another device has to compute "
        "this shard; to take this one back once it is mended: "
        f"{quarantine.clearing(plan.results, uuid)}"
    )


@contextmanager
def input_file(plan: Plan, shard: Shard, inputs: InputFiles) -> Iterator[None]:
    """Say where in the user's own files the matrix is for which a batch is refused.

    Raises
    ------
    InputError
        With file, row and column.
    IntegrityError
        If these files are finite: then their copy is damaged.
    WrongInput
        The same if there is no copy.
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


def _finite_in_file(plan: Plan, shard: Shard, error: BadMatrix) -> IntegrityError:
    if error.key == "input" and plan.settings.materialize:
        return IntegrityError(
            f"{plan.results.shard(shard.input_name)} is damaged: matrix {error.matrix} holds NaN "
            f"or Inf there, but none in the input; {how_to_repair(plan, shard)}"
        )
    return WrongInput(f"{error.what}, but its file does not; nothing was written. {SUSPECT}")
