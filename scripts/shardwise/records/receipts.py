"""Receipts: small JSON files, written last, that say a result is whole. No receipt, no result."""

import json
import os
import socket
import stat
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from shardwise import ALGORITHM, host
from shardwise.errors import IntegrityError, TryAgain, short, writing
from shardwise.files import small
from shardwise.files.checksum import file_checksum
from shardwise.files.commit import commit, temporary_for
from shardwise.files.npy import DATA_OFFSET, padded_header
from shardwise.files.small import open_own
from shardwise.host import job_number, loaded

SCHEMA = 1

_DEVICE, _SOFTWARE = ("name", "uuid"), ("algorithm", "commit", "versions")
_Values = tuple[Any, ...]


class NoReceipt(IntegrityError):  # noqa: N818 - named after what was found
    """There is no receipt."""


class UnknownSchema(IntegrityError):  # noqa: N818 - named after what was found
    """A receipt that another version of Shardwise has written."""


def write(path: Path, receipt: dict[str, Any]) -> None:
    """Commit a receipt; the file it speaks of must be on disk already.

    Its last key, ``digest``, is a checksum of all bytes before it.
    """
    with commit(path) as file:
        file.write(_text(receipt))


def _text(receipt: dict[str, Any]) -> bytes:
    body = json.dumps({"schema": SCHEMA, **receipt}, indent=1).removesuffix("\n}")
    return small.with_digest(body.encode())


def write_for(path: Path, receipt: dict[str, Any], product: Path, own: os.stat_result) -> None:
    """Commit the receipt of a file that another attempt may have replaced since.

    Parameters
    ----------
    own
        Facts of the file that the receipt speaks of, by which it is known again.

    Raises
    ------
    TryAgain
        Where the other attempt's file has other bytes. It has no receipt then, or its own.
    """
    write(path, receipt)
    if _is(product, own) or has_same_elements(product, receipt["file"]):
        return
    _withdraw(path, _text(receipt))
    raise TryAgain(
        f"{product}: another attempt of this shard, whose bytes differ, has replaced it meanwhile; "
        "let that one finish, then try again"
    )


def _withdraw(path: Path, text: bytes) -> None:
    """Remove a receipt if its text is this one, and no other, whenever that is committed.

    It is renamed before it is looked at for the last time: the other attempt may commit its own
    between a look and a removal, which would then remove that.
    """
    with suppress(FileNotFoundError):
        if path.read_bytes() != text:
            return
        aside = temporary_for(path)
        os.rename(path, aside)
        if aside.read_bytes() != text:
            with suppress(OSError):  # a still newer one is there, or the disk has no hard links
                os.link(aside, path)
        aside.unlink()


def _is(path: Path, known: os.stat_result) -> bool:
    """Whether a file is one that was seen before under this name or another."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (known.st_dev, known.st_ino)


def has_same_elements(path: Path, facts: dict[str, Any]) -> bool:
    """Whether a file is what a receipt says of it; all of it is read."""
    try:
        check_file(path, facts)
    except IntegrityError:
        return False
    found = file_checksum(path, DATA_OFFSET, facts["row_bytes"], facts["piece_bytes"])
    return found == facts["checksum"]


def read(path: Path) -> dict[str, Any]:
    """Read a receipt: of a product, of a copy of a shard's matrices, or of the sum.

    Nothing else reads one. Every byte must be as it was written, by the receipt's own digest.

    Raises
    ------
    IntegrityError
        Where it is damaged; of its classes `NoReceipt` where there is none, and `UnknownSchema`
        where another version has written it.
    """
    raw = small.read(path)
    if raw is None:
        raise NoReceipt(f"{path}: the receipt is missing")
    if not small.has_own_digest(raw):
        raise IntegrityError(f"{path}: has changed since it was written, by its own digest")
    try:
        receipt = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{path}: the receipt cannot be read ({short(error)})") from error
    if not isinstance(receipt, dict):
        raise IntegrityError(f"{path}: is no receipt")
    if repr(receipt.get("schema")) != repr(SCHEMA):  # as text: true equals 1
        raise UnknownSchema(
            f"{path}: is no receipt of schema {SCHEMA}, the one known here, but of schema "
            f"{short(receipt.get('schema'))}; use the version of Shardwise that has written it"
        )
    return receipt


def note_start(path: Path) -> int:
    """Add one line to the journal of a shard's starts; returns which attempt this is.

    The journal outlives the attempts: a log is removed before the next one, and a receipt is only
    written by the one that succeeds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    line = f"{time.time():.3f}\t{host.node()}\t{os.getpid()}\t{job_number() or ''}\n"
    with writing(path), open_own(path, "a+b") as file:
        file.write(line.encode())
        file.flush()
        file.seek(0)
        return file.read().count(b"\n")


def starts(path: Path) -> int:
    """How many attempts a journal knows of."""
    with suppress(OSError):
        return path.read_bytes().count(b"\n")
    return 0


def makers(found: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Who made the products of some receipts: devices, nodes and software, with their shards."""
    used, nodes, software = Counter[_Values](), Counter[str](), Counter[_Values]()
    for receipt in found:
        used[_values(receipt["device"], _DEVICE)] += 1
        nodes[receipt["node"]] += 1
        software[_values(receipt, _SOFTWARE)] += 1
    return {
        "devices": _counted(used, _DEVICE),
        "nodes": dict(sorted(nodes.items())),
        "software": _counted(software, _SOFTWARE),
    }


def _values(facts: Mapping[str, Any], keys: Iterable[str]) -> _Values:
    """Some values of a receipt, to count by: there may be 100,000, and JSON would take seconds."""
    found = map(facts.get, keys)
    return tuple(frozenset(v.items()) if isinstance(v, dict) else v for v in found)


def _counted(shards: Mapping[_Values, int], keys: Iterable[str]) -> list[dict[str, Any]]:
    """What was counted, under its keys again, in an order that depends on nothing else."""
    told = []
    for values, count in shards.items():
        plain = [dict(sorted(v)) if isinstance(v, frozenset) else v for v in values]
        told.append(dict(zip(keys, plain, strict=True)) | {"shards": count})
    return sorted(told, key=json.dumps)


def file_facts(
    path: Path, shape: tuple[int, ...], dtype: str,
    checksum: str, row_bytes: int, piece_bytes: int,
) -> dict[str, Any]:  # fmt: skip
    """What a receipt says of the array file beside it.

    Parameters
    ----------
    checksum, row_bytes, piece_bytes
        Of the elements, as :class:`~shardwise.files.checksum.PieceChecksum` defines it.
    """
    size = path.stat().st_size
    return {
        "name": path.name,
        "shape": list(shape),
        "dtype": dtype,
        "bytes": size,
        "checksum": checksum,
        "row_bytes": row_bytes,
        "piece_bytes": piece_bytes,
    }


def check_file(path: Path, facts: Mapping[str, Any]) -> None:
    """Compare a file's header and size with its receipt; the elements are left to their reader.

    The checksum leaves the header out, so each of its bytes must be that of our own files.

    Raises
    ------
    IntegrityError
        Where they differ.
    """
    try:
        dtype = np.dtype(facts["dtype"]).newbyteorder("<")
        header, size = padded_header(facts["shape"], dtype), facts["bytes"]
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise IntegrityError(f"{path}: its receipt is damaged ({short(error)})") from None
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # opening a pipe would wait for ever
            raise IntegrityError(f"{path}: is not a file")
        with open(path, "rb", buffering=0) as file:
            raw = file.read(len(header))
    except FileNotFoundError:
        raise IntegrityError(f"{path}: is missing, though its receipt is there") from None
    except OSError as error:
        raise IntegrityError(f"{path}: cannot be read: {error.strerror}") from error
    if found.st_size != size:
        raise IntegrityError(f"{path}: has {found.st_size} bytes, not {short(size)}")
    if raw != header:
        raise IntegrityError(f"{path}: its header is not what its receipt says")


def provenance(
    stage: str, started: float, versions: Mapping[str, str] | None = None,
    finished: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Which code made a result, where, and when (Unix seconds).

    Parameters
    ----------
    started
        When it was begun to be read, or to be copied first, where a task does that itself. In one
        process that may be while the shard before is still computed.
    versions
        Of what is no package of Python, such as the driver.
    finished
        When it was done; left out, now.
    """
    return {
        "stage": stage,
        "algorithm": ALGORITHM[stage],
        "versions": {**loaded(), **(versions or {})},
        "commit": host.announced(),
        "host": socket.gethostname(),
        "node": host.node(),
        "job": job_number(),
        "process": os.getpid(),
        "started": started,
        "finished": time.time() if finished is None else finished,
    }
