"""The journal of a shard's attempts: one line each, which stays if the attempt is killed."""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from shardwise import host
from shardwise.errors import ShardwiseError
from shardwise.files import small


class Start(NamedTuple):
    """When an attempt began (Unix time), by which process of a node, and on which device."""

    at: float
    node: str
    process: int
    device: str
    uuid: str | None


def note_start(path: Path, device: Mapping[str, Any] | None = None) -> int:
    """Add a line to a journal; return the number of this attempt.

    ``device`` has the ``name`` of what computes, and its ``uuid`` if it is a GPU.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    own = device or {}
    cells = [f"{time.time():.3f}", host.node(), os.getpid(), host.job_number() or ""]
    cells += [own.get("name") or "", own.get("uuid") or ""]
    return small.append_line(path, "\t".join(map(str, cells)), sync=False)


def count_starts(path: Path) -> int:
    """How many attempts a journal knows of."""
    with suppress(OSError):
        return path.read_bytes().count(b"\n")
    return 0


def forget_start(path: Path) -> None:
    """Remove the journal of a shard that has succeeded, if it took one attempt only."""
    if count_starts(path) == 1:
        with suppress(OSError):
            path.unlink()


def last_start(path: Path) -> Start | None:
    """The latest attempt; None if there is none, or if the journal cannot be parsed."""
    with suppress(ShardwiseError, ValueError, IndexError):
        line = (small.read(path) or b"").decode().splitlines()[-1]
        at, node, process, _, name, uuid = line.split("\t")
        if 0 <= float(at) < 2**63:
            return Start(float(at), node, int(process), name, uuid or None)
    return None
