"""Attempts at a shard or a stage: why the last one failed, and a journal of when each began.

A task that fails writes the failure, one that succeeds removes it; nothing parses a log. A killed
task writes none itself, but its line in the journal stays.
"""

import json
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from shardwise import errors, host
from shardwise.errors import InputError, IntegrityError, ShardwiseError, one_line, verdict
from shardwise.files import small
from shardwise.files.commit import commit
from shardwise.files.paths import Results

RUN = "SHARDWISE_RUN"  # the environment variable that tells a job which run it belongs to
DEVICE = "device-"  # begins the name of a GPU's failure, before its UUID
_LETTERS = 2000  # of a reason at most


@dataclass(frozen=True)
class Failure:
    """One failure of a shard, a stage or a GPU; a traceback is only in the log."""

    name: str  # of the shard, or of the stage, such as ``reduce-KEY``
    code: int  # the exit code
    reason: str  # one line
    host: str
    at: float  # Unix time
    device: str | None = None  # the UUID of a GPU
    attempt: int = 1
    run: str | None = None
    log: str | None = None  # a path in the results folder


def this_run() -> str:
    """The name of this process's run; one that is started by hand begins a run of its own."""
    return os.environ.setdefault(RUN, os.urandom(6).hex())


def note(
    results: Results, name: str, error: Exception, log: Path, device: str | None, attempt: int
) -> Failure:
    """Write why a shard or a stage failed, unless the disk refuses the file.

    The device of an error that makes it ``suspect`` also gets its own file, which stays if the
    shard succeeds elsewhere.
    """
    code, reason = verdict(error)
    words = re.sub("\n *", "; ", reason.partition("\nTraceback (most recent call last)")[0])
    if len(words := one_line(words)) > _LETTERS:
        # It may hold a command that users paste: cut no name of a file, and add no word to it.
        words = f"{words[:_LETTERS].rpartition(' ')[0] or words[:99]}; … (the log has the rest)"
    place = os.path.relpath(log, results.root) if os.path.exists(log) else None
    failure = Failure(name, code, words, host.node(), time.time(),
                      device, attempt, this_run(), place)  # fmt: skip
    suspect = [f"{DEVICE}{device}"] if device and getattr(error, "suspect", False) else []
    try:
        results.failed.mkdir(exist_ok=True)
        for own in [name, *suspect]:
            with commit(results.failure(own)) as file:
                file.write(json.dumps(asdict(failure), indent=1).encode() + b"\n")
    except (OSError, ShardwiseError) as unwritten:
        why = f"the failure file cannot be written: {unwritten}"
        errors.log.error("%s: %s (%s)", name, failure.reason, why)
    return failure


def read(path: Path) -> Failure | None:
    """Read a failure; None if the file is missing or cannot be parsed."""
    with suppress(ShardwiseError, ValueError, RecursionError):
        import msgspec  # here: parsing a Snakefile must not require it

        found = msgspec.json.decode(small.read(path) or b"", type=Failure)
        return replace(found, reason=one_line(found.reason)[: 2 * _LETTERS])
    return None


def needs_user(failure: Failure) -> bool:
    """Whether the user has to act before another try: bad input, or a file that is not whole.

    Then `progress` ends a job's tries, and `claims.with_hope` those of a shard.
    """
    return failure.code in (InputError.exit_code, IntegrityError.exit_code)


def suspects(results: Results) -> dict[str, Failure]:
    """The devices, by UUID, that were blamed for a failure, each with that failure."""
    found = {path.stem: read(path) for path in results.failed.glob(f"{DEVICE}*.json")}
    return {name.removeprefix(DEVICE): failure for name, failure in found.items() if failure}


def barred(results: Results) -> dict[str, Failure]:
    """The devices, by UUID, that this run does not take again, each with its failure."""
    return {uuid: why for uuid, why in suspects(results).items() if why.run == this_run()}


def forget_devices(results: Results) -> None:
    """Let a new run take the devices again that an earlier run has barred."""
    for uuid in suspects(results):
        results.failure(f"{DEVICE}{uuid}").unlink(missing_ok=True)


class Start(NamedTuple):
    """One line of a journal: an attempt at a shard."""

    at: float  # Unix time
    node: str
    process: int
    device: str
    uuid: str | None


def note_start(path: Path, device: Mapping[str, Any] | None = None) -> int:
    """Add a line with the device's name and UUID to a journal; return the attempt's number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    own = [(device or {}).get(key) for key in ("name", "uuid")]
    cells = [f"{time.time():.3f}", host.node(), os.getpid(), host.job(), *own]
    return small.append_line(path, "\t".join(str(cell or "") for cell in cells), sync=False)


def count_starts(path: Path) -> int:
    """How many attempts a journal knows of."""
    with suppress(OSError):
        return path.read_bytes().count(b"\n")
    return 0


def last_start(path: Path) -> Start | None:
    """The latest attempt; None if there is none, or if the journal cannot be parsed."""
    with suppress(ShardwiseError, ValueError, IndexError):
        line = (small.read(path) or b"").decode().splitlines()[-1]
        at, node, process, _, name, uuid = line.split("\t")
        if 0 <= float(at) < 2**63:
            return Start(float(at), node, int(process), name, uuid or None)
    return None
