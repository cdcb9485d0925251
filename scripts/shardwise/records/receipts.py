"""Receipts: small JSON files, written last, that say a result is whole. No receipt, no result."""

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec
import numpy as np
from msgspec import Meta

from shardwise import ALGORITHM, host
from shardwise.errors import IntegrityError, ShardwiseError, TryAgain, short, unread
from shardwise.files import small
from shardwise.files.checksum import file_checksum
from shardwise.files.commit import commit
from shardwise.files.npy import DATA_OFFSET, StackWriter, padded_header
from shardwise.host import loaded

SCHEMA = 3
_MOST_BYTES = 32 << 20  # with the nodes of 256 labels of 100 letters each

Whole = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Amount = Annotated[float, Meta(ge=0, lt=2**63)]
Line = Annotated[str, Meta(max_length=999, pattern=r"\A[^\x00-\x1f\x7f-\x9f\u2028\u2029]*\Z")]
"""Text that a cell of a table can hold unchanged: one line, without control characters."""


# Without the garbage collector, which would walk 100,000 of them again and again.
class ReceiptPart(msgspec.Struct, frozen=True, gc=False):
    """A part of a receipt: the keys that are read here. Those with a default may be missing."""


class _Form(ReceiptPart, frozen=True):
    schema: int


class ArrayFile(ReceiptPart, frozen=True, omit_defaults=True):
    """An array file next to a receipt; sizes in bytes, and a `PieceChecksum` of the elements.

    ``nodes`` are the level and index of each array of a partial sum, ``labels`` their labels.
    """

    name: Line
    shape: tuple[Whole, ...]
    dtype: str
    bytes: Whole
    checksum: str
    row_bytes: Whole
    piece_bytes: Whole
    nodes: tuple[tuple[Whole, Whole], ...] | None = None
    labels: tuple[int | str, ...] | None = None


class UsedDevice(ReceiptPart, frozen=True):
    """The device that computed a product; a CPU has no UUID."""

    name: Line
    uuid: Line | None = None


class Witness(ReceiptPart, frozen=True):
    """The numbers of the end-to-end proof; the first two may differ by at most ``tolerance``.

    They are ``[x]``, or ``[re, im]``.
    """

    contribution: list[int | float]
    reference: list[int | float]
    mass: float
    tolerance: float


class StackReceipt(ReceiptPart, frozen=True):
    """The receipt of the synthetic stack."""

    file: ArrayFile


class CopyReceipt(StackReceipt, frozen=True):
    """The receipt of a copy of a shard's matrices; for the rest of it see `describe_origin`."""

    shard: str
    start: Whole
    stop: Whole
    key: str
    node: Line
    job: str | None
    process: Whole
    started: Amount
    finished: Amount


class ProductReceipt(CopyReceipt, frozen=True):
    """The receipt of a shard's product, which says all that one of a copy says, and more.

    ``held`` says where its time went, ``recipe`` and ``per_matrix`` are digests from the plan;
    ``adopted`` is the product's name under an earlier plan that computed it.
    """

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
    """The receipt of the sum and of the other statistics, ``summary.json``."""

    proven: bool
    plan: str
    backend: str
    files: dict[str, ArrayFile]
    end_to_end: dict[str, Any] | None = None


class TotalReceipt(ReceiptPart, frozen=True):
    """The ``summary.json`` of a total of ``shardwise merge``: it names no time and no host."""

    proven: bool
    sources: list[dict[str, Any]]
    files: dict[str, ArrayFile]
    labels: list[tuple[int | str, Whole]] = []


# Made during the import, which runs in one thread. msgspec (0.22) caches its facts about a class
# before they are complete: a second thread that decodes the class at that moment crashes.
_DECODERS: dict[type[ReceiptPart], msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind)
    for kind in (ProductReceipt, CopyReceipt, StackReceipt, SumReceipt, TotalReceipt)
}
_FORM = msgspec.json.Decoder(_Form)

_R = TypeVar("_R", bound=ReceiptPart)


class NoReceipt(IntegrityError):  # noqa: N818 - named after what was found
    """There is no receipt."""


class UnknownSchema(IntegrityError):  # noqa: N818 - named after what was found
    """A receipt that another version of Shardwise has written."""


def write(path: Path, receipt: dict[str, Any]) -> None:
    """Commit a receipt with its own checksum; the file that it describes must be on disk."""
    with commit(path) as file:
        file.write(_text(receipt))


def _text(receipt: dict[str, Any]) -> bytes:
    body = json.dumps({"schema": SCHEMA, **receipt}, indent=1, default=msgspec.to_builtins)
    return small.with_digest(body.removesuffix("\n}").encode())


def write_for(path: Path, receipt: dict[str, Any], product: Path, written: os.stat_result) -> None:
    """Commit the receipt of a file, ``written``, that another attempt may have replaced meanwhile.

    TryAgain if that attempt's file has other bytes: then it has no receipt, or gets its own.
    """
    write(path, receipt)
    with suppress(FileNotFoundError):
        if os.path.samestat(product.stat(), written):
            return
    if passes(check_elements, product, receipt["file"]):
        return
    path.unlink(missing_ok=True)
    raise TryAgain(
        f"{product}: another attempt of this shard has meanwhile replaced it with different bytes; "
        "let that attempt finish, then try again"
    )


def passes(check: Callable[..., object], *words: Any) -> bool:
    """Whether a check passes without an error of ours."""
    try:
        check(*words)
    except ShardwiseError:
        return False
    return True


def read(path: Path, kind: type[_R]) -> _R:
    """Read a receipt of a kind; no other function reads receipts.

    IntegrityError if it does not match its own digest or is not of this kind; its kinds `NoReceipt`
    if there is none, `UnknownSchema` if another version has written it.
    """
    raw = small.read(path, _MOST_BYTES)
    if raw is None:
        raise NoReceipt(f"{path}: the receipt is missing")
    if not small.has_own_digest(raw):
        raise IntegrityError(f"{path} has changed since it was written: its digest does not match")
    try:
        # First, as the keys of another schema need not be those of this kind.
        if (schema := _FORM.decode(raw).schema) != SCHEMA:
            raise UnknownSchema(
                f"{path} is a receipt of schema {schema}, and only schema {SCHEMA} can be read "
                "here; use the version of Shardwise that wrote it"
            )
        return cast(_R, _DECODERS[kind].decode(raw))
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{path} is damaged ({short(error)})") from error


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
        raise unread(path, error) from error
    return facts.bytes


check_elements = partial(check_file, elements=True)
"""As :func:`check_file`, down to the last byte."""


def describe_origin(
    stage: str, started: float, versions: Mapping[str, str] = {}, finished: float | None = None
) -> dict[str, Any]:
    """Which code made a result, where, and from when to when (Unix seconds; by default now).

    ``versions`` are of what is not a Python package, such as the driver.
    """
    return {
        "stage": stage,
        "algorithm": ALGORITHM[stage],
        "versions": {**loaded(), **versions},
        "commit": os.environ.get(host.VARIABLE) or None,
        "host": socket.gethostname(),
        "node": host.node(),
        "job": host.job(),
        "process": os.getpid(),
        "started": started,
        "finished": time.time() if finished is None else finished,
    }
