"""The state of each shard of a plan, from its files: receipt, live file, journal of starts, log.

`Sightings._unfinished` has the rules for a shard whose receipt the judge rejects. A journal and a
log outlive a plan; entries older than the present plan belong to an earlier one.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from shardwise import units
from shardwise.errors import IntegrityError, one_line
from shardwise.files import small
from shardwise.files.paths import folders, place
from shardwise.observe.observation import (
    DAMAGED,
    DONE,
    FAILED,
    RUNNING,
    WAITING,
    DeviceOfNode,
    FailureReason,
    Sighting,
)
from shardwise.plan.plan import Plan, Shard
from shardwise.records import judge, ledger, live, logs, receipts
from shardwise.records.receipts import Line, Moment, ProductReceipt, UsedDevice, Whole

FRESH_SECONDS = 30.0
"""A living task gives a sign of life within this time: it renews its live file every 2 s."""

SKEW_SECONDS = 60.0
"""How much the clocks of nodes may differ."""

_SETTLING_SECONDS = 5.0
"""How much older than its start a log may seem, as both have clocks of their own."""

_MOST_LETTERS = 1000
_MOST_NAMED = 20

_Stamp = tuple[int, int]
_T = TypeVar("_T")


class _LiveFile(msgspec.Struct):
    """What a running task says about itself, as `shardwise.multiply.live` writes it."""

    schema: int
    shard: str
    attempt: int = 0
    node: Line = "an unknown node"
    device: UsedDevice | None = None
    started: Moment | None = None
    matrices: Whole = 0
    done: Whole | None = None


class _Product(NamedTuple):
    """What the receipt and the product of a shard show.

    If the shard is done, ``whole`` is its sighting and ``line`` its line in the ledger. Otherwise
    ``flaw`` says what cannot be used, if anything is there, and ``written`` when it was written.
    """

    whole: Sighting | None = None
    flaw: str | None = None
    written: float = 0.0
    line: bytes = b""


_NO_PRODUCT = _Product()


class _Starts(NamedTuple):
    """The journal of a shard: attempts, those of them under this plan, and when the last began.

    The last is None where that is not known. A live file and a receipt count all attempts.
    """

    every: int = 0
    count: int = 0
    last: float | None = None


class _LogEnd(NamedTuple):
    """The end of a log: its last error, its last line, and whether it ended well."""

    error: str | None
    words: str | None
    well: bool


class FileCache:
    """The content of files, by name; read again when their stamps have changed."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[Any, Any]] = {}

    def get(self, name: str, stamp: Any, read: Callable[[], _T]) -> _T:
        """The content of some files."""
        before = self._read.get(name)
        if before is None or before[0] != stamp:
            before = self._read[name] = stamp, read()
        return before[1]


class Sightings:
    """Looks at the shards of a plan repeatedly; a file that has not changed is not read again.

    In the plan's order, ``problems`` has a line for each of the first damaged shards, and
    ``ledger_lines`` the line in the ledger of each finished shard.
    """

    def __init__(self) -> None:
        self.problems: tuple[str, ...] = ()
        self.ledger_lines: dict[str, bytes] = {}
        self._plan: Plan
        self._facts: Any = None

    def look(self, plan: Plan, at: float) -> dict[str, Sighting]:
        """The state of the shards at a moment, in the plan's order."""
        if self._facts != plan.facts:
            self._cache = FileCache()
        self._plan, self._facts, self._at, results = plan, plan.facts, at, plan.results
        self._planned = (plan.facts.made.time if plan.facts.made else 0.0) - SKEW_SECONDS
        self._folders = {name: _Folder(results.root / "logs" / name)
                         for name in ("live", "multiply", "shard")}  # fmt: skip
        # Before the products: a shard that is done has a receipt before its journal goes.
        begun, products = self._folders["multiply"].names, _Folder(results.products)
        sightings, flaws, self.ledger_lines = {}, [], {}
        for shard, row in plan.shards.items():
            name = place(shard)
            product = self._product(row, products, name)
            sightings[shard] = product.whole or self._unfinished(row, product)
            if f"{name}.starts" in begun and sightings[shard].state not in (DONE, RUNNING):
                # Done since the folder was listed, it has no live file, and no journal any more.
                products.names.add(f"{name}.json")
                product = self._product(row, products, name)
                sightings[shard] = product.whole or sightings[shard]
            if product.whole:
                self.ledger_lines[shard] = product.line
            if sightings[shard].state == DAMAGED:
                flaws.append(one_line(str(product.flaw)))
        self.problems = tuple(flaws[:_MOST_NAMED])
        return sightings

    # The product.

    def _product(self, row: Shard, products: "_Folder", name: str) -> _Product:
        status = products.get(f"{name}.json")
        if status is None:
            return _NO_PRODUCT
        # The product came before its receipt, perhaps after the folder was listed: so ask for it.
        stamp = _stamp(status), stamped(f"{products.path}/{name}.npy")
        return self._cache.get(row.shard, stamp, lambda: self._read_product(row, status.st_mtime))

    def _read_product(self, row: Shard, written: float) -> _Product:
        try:
            receipt = judge.check_product(self._plan, row.shard)
        except (receipts.NoReceipt, judge.OtherPlan):
            return _NO_PRODUCT  # of an earlier plan: the next run replaces it
        except receipts.UnknownSchema as error:
            return _Product(flaw=str(error), written=written)
        except IntegrityError as error:
            cure = f"{ledger.build_repair(self._plan, [row.shard])}, then snakemake as before"
            return _Product(flaw=f"{error}; {cure}", written=written)
        return _Product(self._done(row, receipt), line=ledger.format_line(receipt))

    def _done(self, row: Shard, receipt: ProductReceipt) -> Sighting:
        device, attempts = receipt.device, receipt.attempt
        if attempts > 1:  # those of earlier plans do not count
            starts = self._starts(row.shard)
            attempts = max(1, attempts - starts.every + starts.count)
        return Sighting(
            row.shard, DONE, row.stop - row.start, row.bytes, attempts, receipt.started,
            receipt.finished, DeviceOfNode(device.name, device.uuid, receipt.node),
            receipt.proof is not None, receipt.held,
        )  # fmt: skip

    # What is not done.

    def _unfinished(self, row: Shard, product: _Product) -> Sighting:
        """How a shard without a whole product stands; the first rule that fits decides."""
        starts = self._starts(row.shard)
        began = starts.last
        waiting = Sighting(row.shard, WAITING, row.stop - row.start, row.bytes, starts.count)
        task, task_at = self._live(row.shard, starts.every)
        if task and self._at - task_at < FRESH_SECONDS:
            return _running(waiting, began, task)
        if began is not None and began < self._planned:
            began = None
        if product.flaw and (began is None or began <= product.written):
            return replace(waiting, state=DAMAGED)
        log, log_at = self._log("multiply", row.shard, began)
        if log and log.error:
            return self._failed(waiting, began, log.error, "multiply", log_at)
        if began is None or (log and log.well):  # what it had written was removed
            return self._not_begun(waiting)
        last = max(began, log_at, task_at)
        if self._at - last < FRESH_SECONDS:
            return _running(waiting, began, task)
        lost = f"no sign of life since {units.any_clock(last)}: killed, or lost with its node"
        words = (log and log.words) or lost
        return self._failed(waiting, began, words, "multiply" if log else None, last)

    def _not_begun(self, waiting: Sighting) -> Sighting:
        """The state of a shard that nobody began under this plan; its copy may have failed."""
        log, at = self._log("shard", waiting.shard, None)
        if log and log.error and not self._plan.results.shard_receipt(waiting.shard).exists():
            return self._failed(waiting, None, log.error, "shard", at)
        return waiting

    def _failed(
        self, waiting: Sighting, began: float | None, reason: str, rule: str | None, at: float
    ) -> Sighting:
        results = self._plan.results
        log = str(results.log(rule, waiting.shard).relative_to(results.root)) if rule else None
        failure = FailureReason(one_line(reason)[:_MOST_LETTERS], log, at)
        return replace(waiting, state=FAILED, started=began, failure=failure)

    # Its other files.

    def _starts(self, shard: str) -> _Starts:
        name = f"{place(shard)}.starts"
        found, _ = self._seen("multiply", name, lambda path: _journal(path, self._planned))
        return found or _Starts()

    def _live(self, shard: str, attempts: int) -> tuple[_LiveFile | None, float]:
        """What a running task says about itself, and when it last did.

        The live file of an earlier attempt does not count: its task was killed.
        """
        task, at = self._seen("live", f"{shard}.json", _live_file)
        fits = task is not None and task.shard == shard and task.attempt >= attempts
        return (task, at) if fits else (None, 0.0)

    def _log(self, rule: str, shard: str, began: float | None) -> tuple[_LogEnd | None, float]:
        """The end of the log of an attempt, unless it is of an earlier one, and its time."""
        end, at = self._seen(rule, f"{place(shard)}.log", lambda path: _end_of(path, shard))
        since = self._planned if began is None else began - _SETTLING_SECONDS
        return (end, at) if at >= since else (None, 0.0)

    def _seen(self, folder: str, name: str, read: Callable[[Path], _T]) -> tuple[_T | None, float]:
        """The content of a file in a folder of logs, read if it has changed, and its time.

        None if there is no such file.
        """
        status = self._folders[folder].get(name)
        if status is None:
            return None, 0.0
        path = f"{self._folders[folder].path}/{name}"
        return self._cache.get(path, _stamp(status), lambda: read(Path(path))), status.st_mtime


class _Folder:
    """The per-shard files of a folder, which is listed at the first request, as few follow."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def names(self) -> set[str]:
        """The names of all files, by `place` and suffix."""
        names: set[str] = set()
        with suppress(OSError):
            for folder in folders(self.path):
                before = "" if folder == self.path else f"{folder.name}/"
                names.update(f"{before}{name}" for name in os.listdir(folder))
        return names

    def get(self, name: str) -> os.stat_result | None:
        """The status of a file, named by `place`; None if there is none."""
        try:
            return os.stat(f"{self.path}/{name}") if name in self.names else None
        except OSError:
            return None


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_mtime_ns, status.st_size


def stamped(file: Path | str) -> _Stamp | None:
    """When a file was written, in nanoseconds, and its size; None if there is none."""
    try:
        return _stamp(os.stat(file))
    except OSError:
        return None


def _running(waiting: Sighting, began: float | None, task: _LiveFile | None) -> Sighting:
    """A shard being computed, with its progress if the task reports it."""
    if task is None:
        return replace(waiting, state=RUNNING, started=began)
    device, progress = task.device, None
    if task.done is not None and task.matrices:
        progress = min(1.0, task.done / task.matrices)
    return replace(
        waiting, state=RUNNING, started=began if task.started is None else task.started,
        device=device and DeviceOfNode(device.name, device.uuid, task.node),
        progress=progress,
    )  # fmt: skip


def _live_file(path: Path) -> _LiveFile | None:
    try:
        task = msgspec.json.decode(small.read(path) or b"", type=_LiveFile)
    except (IntegrityError, ValueError, RecursionError):
        return None
    return task if task.schema == live.SCHEMA else None


def _journal(path: Path, planned: float) -> _Starts:
    """The journal of a shard under a plan; a line that says no time counts as of this plan."""
    lines: list[bytes] = []
    with suppress(IntegrityError):
        lines = (small.read(path) or b"").splitlines()
    times = [_time(line) for line in lines]
    count = sum(time is None or time >= planned for time in times)
    return _Starts(len(times), count, times[-1] if times else None)


def _time(line: bytes) -> float | None:
    with suppress(ValueError):
        return units.number(float(line.split(b"\t")[0]))
    return None


def _end_of(path: Path, shard: str) -> _LogEnd:
    text = logs.read_tail(path)
    error = (logs.find_errors(text) or [None])[-1]
    return _LogEnd(error, logs.find_last_words(text), logs.ended_well(text, shard))
