"""Small files, in a folder where any name may be a link or a pipe. Standard library only."""

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from shardwise.errors import InputError, IntegrityError, unread, writing
from shardwise.files.commit import commit
from shardwise.files.paths import Results, for_bash

MOST_BYTES = 1 << 20  # no file of ours that is read whole has more
DIGEST = b',\n "digest": "'  # begins the last key that `with_digest` adds


def checksum(raw: Any, nbytes: int = 16) -> str:
    """A digest of bytes, or of a contiguous array: ``nbytes`` in hexadecimal digits."""
    return hashlib.blake2b(raw, digest_size=nbytes).hexdigest()


def with_digest(body: bytes) -> bytes:
    """A JSON object with a checksum as its last key; ``body`` lacks the closing brace."""
    return body + DIGEST + f'{checksum(body)}"\n}}\n'.encode()


def read(path: Path | str, most: int = MOST_BYTES) -> bytes | None:
    """The bytes of a regular file, or None; IntegrityError if it exceeds ``most`` bytes."""
    try:
        with open_regular(path) as (descriptor, status):
            if status.st_size > most:
                raise IntegrityError(f"{path} has {status.st_size} bytes, too many for this file")
            return os.pread(descriptor, status.st_size, 0)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unread(path, error) from error


@contextmanager
def open_regular(path: Path | str) -> Iterator[tuple[int, os.stat_result]]:
    """The descriptor and status of a file; IntegrityError for pipes and such."""
    # No file object: that halves the time for a million files. A pipe does not block.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise IntegrityError(f"{path} is not a file")
        yield descriptor, status
    finally:
        os.close(descriptor)


def refuse_links(results: Results) -> None:
    """Refuse results whose folders, or files that are appended to, are links."""
    logs, own = results.running.parent, (results.shards, results.products, results.failed)
    for path in (*own, results.done, results.claims, results.runs, logs, *logs.glob("*")):
        if path.is_symlink():
            raise InputError(
                f"{path} is a link: files would land outside the results folder. Remove the link; "
                "to keep results on another disk, make the results folder itself a link"
            )


def mark(results: Results) -> None:
    """Mark a folder as one that runs may write in; create it if it is missing."""
    if not results.marker.exists():
        with commit(results.marker) as file:
            file.write(b"A run of Shardwise made this folder, and may replace results in it.\n")


def refuse_moved(results: Results, began: os.stat_result) -> None:
    """Refuse to go on if the folder in which a task began no longer has this name."""
    with suppress(FileNotFoundError):
        if os.path.samestat(began, os.stat(results.root)):
            return
    words = "was renamed or removed while this task worked; run again where the results are now"
    raise InputError(f"{results.root} {words}")


def refuse_unmarked(results: Results) -> None:
    """Refuse to write into a folder that no run has made."""
    if not results.marker.is_file():
        words = "no run made this folder; name that of a run or, if one did make this, touch"
        raise InputError(f"{results.root}: {words} {for_bash(results.marker)}")


def append_line(path: Path, line: str, sync: bool = True) -> int:
    """Add a line to a file, on the disk at return if ``sync``; return how many it has."""
    with writing(path), open(path, "a+b") as file:
        file.seek(0)
        before = file.read()
        # A full disk may have cut off the last line, which would swallow the new one.
        end = b"" if before[-1:] in (b"", b"\n") else b"\n"
        raw = end + line.encode() + b"\n"
        file.write(raw)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    return (before + raw).count(b"\n")
