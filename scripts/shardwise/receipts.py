"""Receipts: small JSON files, written last, that say a result is whole. No receipt, no result."""

import json
import os
import platform
import socket
import time
from pathlib import Path
from typing import Any

from shardwise import ALGORITHM, __version__, devices
from shardwise.arrays import commit, read_header
from shardwise.errors import InputError, IntegrityError

SCHEMA = 1


def write(path: Path, receipt: dict[str, Any]) -> None:
    """Commit a receipt; the file it speaks of must be on disk already."""
    with commit(path) as file:
        file.write(json.dumps({"schema": SCHEMA, **receipt}, indent=1).encode() + b"\n")


def read(path: Path) -> dict[str, Any]:
    """Read a receipt.

    Raises
    ------
    IntegrityError
        Where it is missing, damaged, or of an unknown schema.
    """
    try:
        receipt = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise IntegrityError(f"{path}: the receipt is missing") from None
    except (ValueError, OSError) as error:
        raise IntegrityError(f"{path}: the receipt cannot be read ({error})") from error
    if not isinstance(receipt, dict) or receipt.get("schema") != SCHEMA:
        raise IntegrityError(f"{path}: is no receipt of schema {SCHEMA}")
    return receipt


def note_start(path: Path) -> int:
    """Add one line to the journal of a shard's starts; returns which attempt this is.

    The journal outlives the attempts: a log is removed before the next one, and a receipt is only
    written by the one that succeeds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    line = f"{time.time():.3f}\t{devices.node()}\t{os.getpid()}\t{_job() or ''}\n"
    with open(path, "a+b") as file:
        file.write(line.encode())
        file.flush()
        file.seek(0)
        return file.read().count(b"\n")


def _job() -> str | None:
    return os.environ.get("SLURM_JOB_ID") or os.environ.get("JOB_ID")


def file_facts(
    path: Path, shape: tuple[int, ...], dtype: str,
    checksum: str, row_bytes: int, piece_bytes: int,
) -> dict[str, Any]:  # fmt: skip
    """What a receipt says of the array file beside it.

    Parameters
    ----------
    checksum, row_bytes, piece_bytes
        Of the elements, as :class:`~shardwise.arrays.PieceChecksum` defines it.
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


def check_file(path: Path, facts: dict[str, Any]) -> None:
    """Compare a file's header and size with its receipt; the elements are left to their reader.

    Raises
    ------
    IntegrityError
        Where they differ.
    """
    try:
        header = read_header(path)
    except InputError as error:
        raise IntegrityError(str(error)) from error
    # The checksum leaves the header out, so all that gives the elements a meaning is compared.
    found = (list(header.shape), header.native.name, path.stat().st_size)
    said = (facts["shape"], facts["dtype"], facts["bytes"])
    if found != said or header.fortran or not header.little_endian:
        order = f"descr {header.descr!r}, fortran_order {header.fortran}"
        raise IntegrityError(f"{path}: is {found}, {order}; but its receipt says {said}")


def provenance(stage: str, started: float, versions: dict[str, str]) -> dict[str, Any]:
    """Which code made a result, where, and when (Unix seconds).

    ``started`` is when it was begun to be read, or to be copied first, where a task does that
    itself. In one process that may be while the shard before is still computed.
    """
    return {
        "stage": stage,
        "algorithm": ALGORITHM[stage],
        "versions": {"shardwise": __version__, "python": platform.python_version(), **versions},
        "host": socket.gethostname(),
        "node": devices.node(),
        "job": _job(),
        "process": os.getpid(),
        "started": started,
        "finished": time.time(),
    }
