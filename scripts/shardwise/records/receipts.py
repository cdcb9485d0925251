"""Receipts: small JSON files, written last, that say a result is whole. No receipt, no result.

Only this code decides whether a receipt is valid: by its digest, by what the plan says of it, and
by its proof. It raises IntegrityError; elements are checked by the code that reads them.
"""

import json
import math
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec
import numpy as np
from msgspec import Meta

from shardwise import ALGORITHM, errors, host
from shardwise.errors import DeviceFailed, IntegrityError, ShardwiseError
from shardwise.files import small
from shardwise.files.checksum import file_checksum
from shardwise.files.commit import commit
from shardwise.files.npy import DATA_OFFSET, StackWriter, padded_header
from shardwise.numerics.end_to_end import gap, sum_bound, summed
from shardwise.plan.problem import Problem

_SCHEMA = 3
_MOST_BYTES = 32 << 20  # with the nodes of 256 labels of 100 letters each

Whole = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Amount = Annotated[float, Meta(ge=0, lt=2**63)]
# Text that a cell of a table can hold unchanged: one line, without control characters.
Line = Annotated[str, Meta(max_length=999, pattern=r"\A[^\x00-\x1f\x7f-\x9f\u2028\u2029]*\Z")]


# Without the garbage collector, which would walk 100,000 of them again and again.
class ReceiptPart(msgspec.Struct, frozen=True, gc=False):
    """A part of a receipt: the keys that are read here. Those with a default may be missing."""


class ArrayFile(ReceiptPart, frozen=True, omit_defaults=True):
    """An array file next to a receipt; sizes in bytes, and a `PieceChecksum` of the elements."""

    name: Line
    shape: tuple[Whole, ...]
    dtype: str
    bytes: Whole
    checksum: str
    row_bytes: Whole
    piece_bytes: Whole
    nodes: tuple[tuple[Whole, Whole], ...] | None = None  # level and index of partial sums
    labels: tuple[int | str, ...] | None = None  # theirs


class UsedDevice(ReceiptPart, frozen=True):
    """The device that computed a product; a CPU has no UUID."""

    name: Line
    uuid: Line | None = None


class Witness(ReceiptPart, frozen=True):
    """The end-to-end proof: the first two may differ by at most ``tolerance``."""

    contribution: list[int | float]  # ``[x]``, or ``[re, im]``
    reference: list[int | float]
    mass: float
    tolerance: float


class StackReceipt(ReceiptPart, frozen=True):
    """The receipt of the synthetic stack."""

    schema: Literal[3]
    file: ArrayFile


class CopyReceipt(StackReceipt, frozen=True):
    """The receipt of a copy of a shard's matrices; for the rest of it see `describe_origin`."""

    shard: str
    start: Whole
    stop: Whole
    key: str
    node: Line
    started: Amount
    finished: Amount


class ProductReceipt(CopyReceipt, frozen=True):
    """The receipt of a shard's product: docs/internals/receipts.md says what the keys mean."""

    keep: Literal["products", "sum"]
    backend: Literal["cupy", "numpy"]
    device: UsedDevice
    attempt: Annotated[int, Meta(ge=1, le=2**31)]
    proof: dict[str, Any] | None
    held: dict[Literal["waiting", "read", "compute", "write"], Amount]
    input_checksum: str | None = None
    right_checksum: str | None = None
    witness: Witness | None = None
    recipe: str | None = None
    per_matrix: str | None = None
    adopted: Line | None = None


class SumReceipt(ReceiptPart, frozen=True):
    """The ``summary.json`` of a sum and of other statistics, or of a total of ``merge``."""

    schema: Literal[3]
    proven: bool
    backend: str
    files: dict[str, ArrayFile]
    plan: str = ""
    end_to_end: dict[str, Any] | None = None
    sources: list[dict[str, Any]] = []  # this and the next are of a total
    labels: list[tuple[int | str, Whole]] = []


# Made during the import, which runs in one thread. msgspec (0.22) caches its facts about a class
# before they are complete: a second thread that decodes the class at that moment crashes.
_DECODERS: dict[type[ReceiptPart], msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind)
    for kind in (ProductReceipt, CopyReceipt, StackReceipt, SumReceipt)
}
_R = TypeVar("_R", bound=ReceiptPart)


class NoReceipt(IntegrityError):  # noqa: N818 - named after what was found
    """There is no receipt."""


class UnknownSchema(IntegrityError):  # noqa: N818 - named after what was found
    """A receipt that another version of Shardwise has written."""


def write(path: Path, receipt: Mapping[str, Any]) -> None:
    """Commit a receipt with its own checksum; the file that it describes must be on disk."""
    with commit(path) as file:
        file.write(_text(receipt))


def _text(receipt: Mapping[str, Any]) -> bytes:
    body = json.dumps({"schema": _SCHEMA, **receipt}, indent=1, default=msgspec.to_builtins)
    return small.with_digest(body.removesuffix("\n}").encode())


def passes(check: Callable[..., object], *words: Any) -> bool:
    """Whether a check passes without an error of ours."""
    try:
        check(*words)
    except ShardwiseError:
        return False
    return True


def read(path: Path, kind: type[_R], file: Mapping[str, Any] = {}, **own: Any) -> _R:
    """Read a receipt; IntegrityError if it, or its ``file``, states other values than these."""
    raw = small.read(path, _MOST_BYTES)
    if raw is None:
        raise NoReceipt(f"{path}: the receipt is missing")
    if raw != small.with_digest(raw.rpartition(small.DIGEST)[0]):
        raise IntegrityError(f"{path} has changed since it was written: its digest does not match")
    try:
        receipt = cast(_R, _DECODERS[kind].decode(raw))
    except (ValueError, RecursionError) as error:
        found = re.match(rb'{\n "schema": (\d{1,9}),', raw)
        if found and (schema := int(found[1])) != _SCHEMA:
            raise UnknownSchema(
                f"{path} is a receipt of schema {schema}, and only schema {_SCHEMA} can be read "
                "here; use the version of Shardwise that wrote it"
            ) from error
        raise IntegrityError(f"{path} is damaged ({errors.short(error)})") from error
    for record, planned in (receipt, own), (getattr(receipt, "file", None), file):
        if (stated := {key: getattr(record, key) for key in planned}) != planned:
            said, wanted = errors.short(stated), errors.short(planned)
            raise IntegrityError(f"{path}: says {said}, but the plan says {wanted}")
    return receipt


def describe_file(path: Path, written: StackWriter, checksum: str, **nodes: Any) -> ArrayFile:
    """What a receipt says of the array file next to it, which has been committed."""
    return ArrayFile(
        path.name, written.shape, written.dtype, path.stat().st_size, checksum,
        written.row_bytes, written.piece_bytes, **nodes,
    )  # fmt: skip


def check_file(path: Path, facts: ArrayFile, elements: bool = False) -> int:
    """Refuse a file that is not what its receipt says; return its size.

    The header must equal our own, as the checksum does not cover it; ``elements`` compares that.
    """
    header = padded_header(facts.shape, np.dtype(facts.dtype).newbyteorder("<"))
    try:
        with small.open_regular(path) as (descriptor, status):
            if status.st_size != facts.bytes:
                raise IntegrityError(f"{path} has {status.st_size} bytes, not {facts.bytes}")
            if os.pread(descriptor, len(header), 0) != header:
                raise IntegrityError(f"{path}: its header does not match its receipt")
            if elements:
                found = file_checksum(path, DATA_OFFSET, facts.row_bytes, facts.piece_bytes)
                if found != facts.checksum:
                    raise IntegrityError(f"{path} has checksum {found}, not {facts.checksum}")
    except OSError as error:
        raise errors.unread(path, error) from error
    return facts.bytes


check_elements = partial(check_file, elements=True)
"""As :func:`check_file`, down to the last byte."""


def witness(total: np.ndarray, tolerance: float) -> Witness:
    """The witness for a shard's receipt, from the total of its forms and its `product_bound`.

    DeviceFailed if products and factors disagree by more than that tolerance.
    """
    parts = len(total) // 2
    one, other = total[:parts], total[parts : 2 * parts]
    mass = float(total[-1]) if len(total) % 2 else 0.0  # integers have none
    if not gap(one, other) <= tolerance:
        raise DeviceFailed(
            "the products of the shard differ from what their factors give by "
            f"{gap(one, other) / (tolerance or 1):.3g} times the tolerance; suspect the device "
            "and try another",
            suspect=True,
        )
    return Witness(one.tolist(), other.tolist(), mass, float(tolerance))


def compare_sum(problem: Problem, products: Sequence[ProductReceipt], form: np.ndarray) -> float:
    """How far a sum of products is from their receipts, as a fraction of the tolerance.

    ``form`` is ``lᵀ S r`` of the sum S. NaN if a receipt has no witness, or if the sum or its proof
    is not finite in double precision.
    """
    said = [receipt.witness for receipt in products if receipt.witness]
    if len(said) < len(products):
        return math.nan
    dtype = "int64" if "int" in problem.product_dtype else "float64"
    off = gap(form, summed([np.array(own.contribution, dtype) for own in said]))
    bound = sum_bound(problem, sum(own.mass + own.tolerance for own in said))
    if not (np.isfinite(form).all() and math.isfinite(bound)):
        return math.nan
    return off / bound if off else 0.0


def describe_origin(
    stage: str, started: float, versions: Mapping[str, str] = {}, finished: float | None = None
) -> dict[str, Any]:
    """Which code made a result, where, and when; ``versions`` are of more than packages."""
    return {
        "stage": stage,
        "algorithm": ALGORITHM[stage],
        "versions": {**host.loaded(), **versions},
        "commit": os.environ.get(host.VARIABLE) or None,
        "host": socket.gethostname(),
        "node": host.node(),
        "job": host.job(),
        "process": os.getpid(),
        "started": started,
        "finished": time.time() if finished is None else finished,
    }
