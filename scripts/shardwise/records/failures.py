"""Attempts at a shard or a stage: why the last one failed, and a journal of when each began.

The task that fails writes the failure; the task that succeeds removes it. Retries, the final
messages of a run, watch and page read it; nothing parses a log. A killed task writes none itself,
but its line in the journal stays.
"""

import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from shardwise import host
from shardwise.errors import InputError, IntegrityError, ShardwiseError, of_code, one_line, verdict
from shardwise.files import small
from shardwise.files.paths import Results, list_names, place

RUN = "SHARDWISE_RUN"  # the environment variable that tells a job which run it belongs to
DEVICE = "device-"  # begins the name of a GPU's failure, before its UUID
_MOST_LETTERS = 2000


@dataclass(frozen=True)
class Failure:
    """One failure: ``name`` is that of a shard, or of a stage, such as ``reduce-KEY``.

    ``code`` is the exit code, ``device`` the UUID of a GPU, ``run`` the run in which it happened,
    ``log`` a path in the results folder, ``at`` Unix time. ``reason`` is one line; a traceback of
    the user's function is in the log.
    """

    name: str
    code: int
    reason: str
    host: str
    at: float
    device: str | None = None
    attempt: int = 1
    run: str | None = None
    log: str | None = None


def begin_run() -> str:
    """Begin a run; return its name, of 12 hexadecimal digits, which all its jobs inherit."""
    os.environ[RUN] = os.urandom(6).hex()
    return os.environ[RUN]


def this_run() -> str:
    """The run that this process belongs to; a process started by hand begins a new run."""
    return os.environ.get(RUN) or begin_run()


def note(
    results: Results, name: str, code: int, reason: str, *, log: Path | None = None,
    device: str | None = None, attempt: int = 1, suspect: bool = False,
) -> None:  # fmt: skip
    """Write why a shard or a stage failed; if the disk refuses the file, only log it.

    A ``suspect`` device also gets its own file, which stays if the shard succeeds elsewhere.
    """
    from shardwise.files.commit import commit  # here: readers do not need it

    words = reason.partition("\nTraceback (most recent call last)")[0]
    failure = Failure(
        name, code, one_line(re.sub("\n *", "; ", words))[:_MOST_LETTERS], host.node(), time.time(),
        device, attempt, this_run(), os.path.relpath(log, results.root) if log else None,
    )  # fmt: skip
    try:
        results.failed.mkdir(exist_ok=True)
        for own in [name, f"{DEVICE}{device}"] if suspect and device else [name]:
            with commit(results.failure(own)) as file:
                file.write(json.dumps(asdict(failure), indent=1).encode() + b"\n")
    except (OSError, ShardwiseError) as error:
        why = f"the failure file cannot be written: {error}"
        logging.getLogger(__name__).error("%s: %s (%s)", name, failure.reason, why)


def forget(results: Results, name: str) -> None:
    """Remove the failure of a shard, a stage or a device, if there is one."""
    with suppress(OSError):
        results.failure(name).unlink()


@contextmanager
def noted(
    results: Results, name: str, log: Path | None = None,
    device: Callable[[], str | None] = lambda: None,
) -> Iterator[None]:  # fmt: skip
    """Write a failure if the body raises; if it succeeds, remove an earlier failure.

    ``device`` returns the UUID of the GPU that this process has taken when the body fails.
    """
    try:
        yield
    except Exception as error:
        note(
            results, name, *verdict(error), log=log, device=device(),
            attempt=count_starts(results.starts(name)) or 1,
            suspect=getattr(error, "suspect", False),
        )  # fmt: skip
        raise
    forget(results, name)


def read(path: Path) -> Failure | None:
    """Read a failure; None if the file is missing or cannot be parsed."""
    with suppress(ShardwiseError, ValueError, RecursionError):
        import msgspec  # here: parsing a Snakefile must not require it

        found = msgspec.json.decode(small.read(path) or b"", type=Failure)
        return replace(found, reason=one_line(found.reason)[:_MOST_LETTERS])
    return None


def of_this_run(results: Results, names: Iterable[str]) -> dict[str, Failure]:
    """The failures of some shards or stages in this run, by name, in the order of the names."""
    there, own = list_names(results.failed), this_run()
    wanted = (name for name in names if f"{place(name)}.json" in there)
    found = ((name, read(results.failure(name))) for name in wanted)
    return {name: failure for name, failure in found if failure and failure.run == own}


def needs_user(failure: Failure) -> bool:
    """Whether the user has to act before another try: bad input, or a file that is not whole."""
    return failure.code in (InputError.exit_code, IntegrityError.exit_code)


def refuse_again(results: Results, name: str) -> None:
    """Raise the error again if a retry in the same run is useless: the user has to act first."""
    failure = read(results.failure(name))
    if failure and needs_user(failure) and failure.run == os.environ.get(RUN):
        raise of_code(failure.code, failure.reason)


def barred(results: Results) -> dict[str, Failure]:
    """The devices, by UUID, that this run does not take again, each with its failure."""
    return {uuid: why for uuid, why in suspects(results).items() if why.run == this_run()}


def forget_devices(results: Results) -> None:
    """Let a new run take the devices again that an earlier run has barred."""
    for uuid in suspects(results):
        forget(results, f"{DEVICE}{uuid}")


def suspects(results: Results) -> dict[str, Failure]:
    """The devices, by UUID, that were blamed for a failure, each with that failure."""
    found = {path.stem: read(path) for path in results.failed.glob(f"{DEVICE}*.json")}
    return {name.removeprefix(DEVICE): failure for name, failure in found.items() if failure}


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
    cells = [f"{time.time():.3f}", host.node(), os.getpid(), host.job() or ""]
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
