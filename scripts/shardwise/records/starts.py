"""The journal of a shard's starts: a line per attempt, which outlives those that are killed."""

import os
import time
from contextlib import suppress
from pathlib import Path

from shardwise import host
from shardwise.errors import writing
from shardwise.files.small import open_own
from shardwise.host import job_number


def note_start(path: Path) -> int:
    """Add a line to a journal; which attempt this is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = f"{time.time():.3f}\t{host.node()}\t{os.getpid()}\t{job_number() or ''}\n"
    with writing(path), open_own(path, "a+b") as file:
        file.write(line.encode())
        file.flush()
        file.seek(0)
        return file.read().count(b"\n")


def count_starts(path: Path) -> int:
    """How many attempts a journal knows of."""
    with suppress(OSError):
        return path.read_bytes().count(b"\n")
    return 0


def last_start(path: Path) -> tuple[float, str, int] | None:
    """When the latest attempt began, in Unix time, its node, and its process; None: nobody."""
    with suppress(OSError, ValueError, IndexError):
        at, node, process, _ = path.read_text().splitlines()[-1].split("\t")
        return float(at), node, int(process)
    return None
