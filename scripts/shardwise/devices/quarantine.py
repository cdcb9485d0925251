"""Devices that have failed, per results folder: tasks leave them alone until their entry expires.

``results/quarantine.tsv`` is a journal: rows are only added, and the last row of a device counts. A
device is cleared by adding a row that has already expired. So tasks on many nodes may write at
once, and a writer that dies leaves at worst half a line, which readers skip. Standard library only.
"""

import fcntl
import functools
import logging
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from shardwise import host as this_host
from shardwise.errors import InputError, IntegrityError
from shardwise.files import small
from shardwise.files.paths import Results
from shardwise.units import clock

log = logging.getLogger(__name__)

HOURS = 24.0
"""How long an entry holds, unless the variable SHARDWISE_QUARANTINE_HOURS says otherwise."""

_MOST_HOURS, _MOST_BYTES = 24 * 365 * 10.0, 1 << 26
_WHY_CHARACTERS = 300
_FIELDS = ("time", "host", "uuid", "why", "shard", "expires")
_NOBODY = "-"


@dataclass(frozen=True)
class Entry:
    """A row of the journal: a device that failed at a `time`, and is left alone until it `expires`.

    Both are seconds of Unix time. `host` is for people, as a node has other names outside of Slurm
    or in a container; a UUID is unique everywhere.
    `shard` is the one that it failed on; ``-`` if it failed before any.
    """

    time: float
    host: str
    uuid: str
    why: str
    shard: str
    expires: float

    def __str__(self) -> str:
        """For a message."""
        shard = "" if self.shard == _NOBODY else f" (shard {self.shard})"
        return f"{self.uuid} of {self.host} until {clock(self.expires)}: {self.why}{shard}"


def note(
    results: Results, uuid: str, why: str, shard: str | None = None,
    now: Callable[[], float] = time.time,
) -> Entry:  # fmt: skip
    """Put a device of this node into quarantine; the entry is on disk at return.

    Where it cannot be written a warning says so: what has failed is told all the same.
    """
    why, began = " ".join(why.split())[:_WHY_CHARACTERS], now()
    until = began + _hours() * 3600
    entry = Entry(began, this_host.node(), uuid, why, shard or _NOBODY, until)
    try:
        _append(results.quarantine, [entry])
    except OSError as error:
        log.warning("%s could not be recorded in %s: %s", entry, results.quarantine, error.strerror)
    return entry


def entries(results: Results, now: Callable[[], float] = time.time) -> list[Entry]:
    """What is in quarantine on any node, the oldest entry first."""
    last: dict[str, Entry] = {}
    for entry in _noted(results.quarantine):
        last.pop(entry.uuid, None)
        last[entry.uuid] = entry
    moment = now()
    return [entry for entry in last.values() if entry.expires > moment]


def barred(results: Results) -> dict[str, str]:
    """The devices, of any node, that no task may take: by UUID, what is said of each."""
    return {
        entry.uuid: f"{entry}; once it is mended: {clearing(results, entry.uuid)}"
        for entry in entries(results)
    }


def clear(
    results: Results, uuid: str | None = None, now: Callable[[], float] = time.time
) -> list[Entry]:
    """Take a device, or all, out of quarantine; returns the entries that held until now.

    `InputError` is raised where that device is not in quarantine, or nothing can be written.
    """
    held = entries(results, now)
    matching = [entry for entry in held if uuid in (None, entry.uuid)]
    if uuid is not None and not matching:
        named = ", ".join(entry.uuid for entry in held) or "no device"
        raise InputError(f"{uuid} is not in quarantine for {results.root}; {named} is")
    moment = now()
    rows = [Entry(moment, e.host, e.uuid, "cleared", _NOBODY, moment) for e in matching]
    try:
        if rows:
            _append(results.quarantine, rows)
    except OSError as error:
        raise InputError(f"{results.quarantine}: {error.strerror}; nothing was cleared") from error
    return matching


def clearing(results: Results, uuid: str | None = None) -> str:
    """The command that takes a device, or all, out of quarantine."""
    words = [sys.executable, str(this_host.SCRIPTS / "doctor.py")]
    words += ["--results", str(results.root.absolute()), "--clear-quarantine"]
    return shlex.join([*words, uuid] if uuid else words)


def report(results: Results) -> list[str]:
    """What the end of a run says of devices in quarantine, as lines; none where there is none."""
    lines = [f"  {entry}" for entry in entries(results)]
    if lines:
        lines.insert(0, "In quarantine for these results; no shard is given to these devices:")
        lines.append(f"To take them back once they are mended:\n  {clearing(results)}")
    return lines


def _hours() -> float:
    """How long an entry holds."""
    text = os.environ.get("SHARDWISE_QUARANTINE_HOURS", "")
    with suppress(ValueError):
        if (hours := float(text or HOURS)) >= 0:
            return min(hours, _MOST_HOURS)
    log.warning("SHARDWISE_QUARANTINE_HOURS is %r, not a number of hours; using %.0f", text, HOURS)
    return HOURS


def _append(path: Path, rows: Iterable[Entry]) -> None:
    """Add rows by one write, so that those of several processes do not mix."""
    # Not through a link, and without waiting where it is no plain file.
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666)
    try:
        with suppress(OSError):  # without locks, a short append is still whole on a local disk
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        before = "" if size else "\t".join(_FIELDS) + "\n"
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            before = "\n"  # behind a line that was cut off
        os.write(descriptor, (before + "".join(map(_line, rows))).encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _noted(path: Path) -> list[Entry]:
    """All rows that can be read, in order; the others are named in a warning."""
    try:
        text = small.read(path, _MOST_BYTES, follow=False) or b""
    except IntegrityError as error:
        _warn(path, f"no device is left alone: {error}")
        return []
    rows = []
    for number, line in enumerate(text.decode(errors="replace").split("\n"), 1):
        if not line or line.split("\t") == list(_FIELDS):
            continue
        if entry := _entry(line):
            rows.append(entry)
        else:
            _warn(path, f"line {number} is no entry and is skipped: {line[:80]!r}")
    return rows


@functools.cache
def _warn(path: Path, text: str) -> None:
    """Say once what is wrong with the journal: a task that waits reads it every second."""
    log.warning("%s: %s", path, text)


def _line(entry: Entry) -> str:
    began, until = (
        datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")
        for moment in (entry.time, entry.expires)
    )
    return "\t".join((began, entry.host, entry.uuid, entry.why, entry.shard, until)) + "\n"


def _entry(line: str) -> Entry | None:
    """A line as a row, or None; anybody may have written there, so nothing in it is trusted."""
    try:
        began, *words, expires = line.split("\t")
        host, uuid, why, shard = words
        if all(words) and "".join(words).isprintable():
            return Entry(_moment(began), host, uuid, why, shard, _moment(expires))
    except (ValueError, OverflowError, OSError):
        pass
    return None


def _moment(text: str) -> float:
    """Seconds of Unix time; a time without its zone is none."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} names no zone")
    seconds = moment.timestamp()
    clock(seconds)  # who reads it wants to show it
    return seconds
