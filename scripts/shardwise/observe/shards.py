"""How each shard of a plan stands, by its files: receipt, live file, journal of starts, log.

`Sightings._unfinished` has the rules for a shard whose receipt the judge does not take. A journal
and a log outlive a plan; what they say of times before this one was made is of another.
"""

import math
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from shardwise import units
from shardwise.devices.gauge import Sample
from shardwise.errors import IntegrityError, one_line
from shardwise.files import small
from shardwise.files.paths import folders, place
from shardwise.multiply import live
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
from shardwise.records import judge, ledger, logs, receipts
from shardwise.records.receipts import Line, Moment, ProductReceipt, UsedDevice, Whole

FRESH_SECONDS = 30.0
"""A task that lives gives a sign within this time: it renews its live file every 2 s."""

SKEW_SECONDS = 60.0
"""Clocks of nodes may differ by so much."""

_SETTLING_SECONDS = 5.0
"""A log may be so much older than the start that it is of: both have clocks of their own."""

_MOST_LETTERS = 1000
_MOST_NAMED = 20

_Stamp = tuple[int, int]
_T = TypeVar("_T")


class _LiveFile(msgspec.Struct):
    """What a task at work says of itself, as `shardwise.multiply.live` writes it."""

    schema: int
    shard: str
    attempt: int = 0
    node: Line = "an unknown node"
    device: UsedDevice | None = None
    started: Moment | None = None
    matrices: Whole = 0
    done: Whole | None = None
    gauge: Sample | None = None


@dataclass(frozen=True, slots=True)
class _Product:
    """What receipt and product of a shard come to.

    ``whole`` is the sighting, where it is done, and ``line`` that of the ledger; else ``flaw`` says
    what cannot be used, if anything lies there, and ``written`` when that was written.
    """

    whole: Sighting | None = None
    flaw: str | None = None
    written: float = 0.0
    line: bytes = b""


_NO_PRODUCT = _Product()


@dataclass(frozen=True, slots=True)
class _Starts:
    """The journal of a shard: how many attempts, of them under this plan, and when the last began.

    A live file counts all of them.
    """

    every: int = 0
    count: int = 0
    last: float | None = None


@dataclass(frozen=True, slots=True)
class _LogEnd:
    """The end of a log: when it was written, its last error and words, whether it ended well."""

    at: float
    error: str | None
    words: str | None
    well: bool


class FileCache:
    """What was read of files, by a name; it is read again where their stamps have changed."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[Any, Any]] = {}

    def get(self, name: str, stamp: Any, read: Callable[[], _T]) -> _T:
        """What some files hold."""
        before = self._read.get(name)
        if before is None or before[0] != stamp:
            before = self._read[name] = stamp, read()
        return before[1]


class Sightings:
    """Looks at the shards of a plan again and again; a file that has not changed is not read twice.

    ``problems`` has a line for each of the first shards, in the plan's order, that are damaged;
    ``ledger_lines`` what the shards that are done make in the ledger, in the plan's order.
    """

    def __init__(self) -> None:
        self.problems: tuple[str, ...] = ()
        self.ledger_lines: dict[str, bytes] = {}
        self._plan: Plan
        self._facts: Any = None

    def look(self, plan: Plan, at: float) -> dict[str, Sighting]:
        """How the shards stand at a moment, in the plan's order."""
        if self._facts != plan.facts:
            self._cache = FileCache()
        self._plan, self._facts, self._at, results = plan, plan.facts, at, plan.results
        self._planned = (plan.facts.made.time if plan.facts.made else 0.0) - SKEW_SECONDS
        self._folders = {name: _Folder(results.root / "logs" / name)
                         for name in ("live", "multiply", "shard")}  # fmt: skip
        # Before the products: a shard that is done has a receipt before its journal goes.
        begun = self._folders["multiply"].names
        products = _Folder(results.products)
        sightings, flaws, self.ledger_lines = {}, [], {}
        for shard, row in plan.shards.items():
            name = place(shard)
            receipt = products.stamp(f"{name}.json")
            product = self._product(row, receipt, receipt and products.stamp(f"{name}.npy"))
            sighting = product.whole or self._unfinished(row, product)
            if f"{name}.starts" in begun and sighting.state not in (DONE, RUNNING):
                # Done after the folder was listed, it has no live file and no journal any more.
                late = self._product(row, stamped(results.receipt(shard)), None)
                product, sighting = (late, late.whole) if late.whole else (product, sighting)
            if product.whole:
                self.ledger_lines[shard] = product.line
            if sighting.state == DAMAGED:
                flaws.append(str(product.flaw))
            sightings[shard] = sighting
        more = len(flaws) - _MOST_NAMED
        self.problems = (
            *map(one_line, flaws[:_MOST_NAMED]),
            *([f"… and {more} more shards whose files cannot be used"] if more > 0 else []),
        )
        return sightings

    # The product.

    def _product(self, row: Shard, receipt: _Stamp | None, product: _Stamp | None) -> _Product:
        if receipt is None:
            return _NO_PRODUCT
        if product is None:  # or it came, before its receipt, where the listing had gone by
            product = stamped(self._plan.results.product(row.shard))
        return self._cache.get(
            row.shard, (receipt, product), lambda: self._read_product(row, receipt[0] / 1e9)
        )

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
        attempts, device = receipt.attempt, receipt.device
        if attempts > 1 and (starts := self._starts(row.shard)).every:
            attempts = max(1, attempts - starts.every + starts.count)  # not those of earlier plans
        return Sighting(
            row.shard, DONE, row.stop - row.start, row.bytes, attempts, receipt.started,
            receipt.finished, DeviceOfNode(device.name, device.uuid, receipt.node),
            receipt.proof is not None, receipt.timeline, receipt.telemetry, process=receipt.process,
        )  # fmt: skip

    # What is not done.

    def _unfinished(self, row: Shard, product: _Product) -> Sighting:
        """How a shard without a whole product stands; the first rule that fits decides."""
        starts = self._starts(row.shard)
        task, task_at = self._live(row.shard, starts.every)
        if task and self._at - task_at < FRESH_SECONDS:
            return self._running(row, starts, task)
        began = starts.last
        if began is not None and began < self._planned:
            began = None
        if product.flaw and (began is None or began <= product.written):
            return self._stands(row, DAMAGED, starts)
        log = self._log("multiply", row.shard, began)
        if log and log.error:
            return self._failed(row, starts, log.error, "multiply", log.at)
        if began is None:
            return self._not_begun(row, starts)
        return self._begun(row, starts, task, max(began, log.at if log else 0.0, task_at), log)

    def _not_begun(self, row: Shard, starts: _Starts) -> Sighting:
        """How a shard stands that no task has begun to multiply under this plan."""
        copy = self._log("shard", row.shard, None)
        if copy and copy.error and not self._plan.results.shard_receipt(row.shard).exists():
            return self._failed(row, starts, copy.error, "shard", copy.at)
        return self._stands(row, WAITING, starts)

    def _begun(
        self, row: Shard, starts: _Starts, task: _LiveFile | None, last: float, log: _LogEnd | None
    ) -> Sighting:
        """How a shard stands whose task has told of no error; ``last`` is its last sign of life."""
        if log and log.well:  # what it had written is gone
            return self._stands(row, WAITING, starts)
        if self._at - last < FRESH_SECONDS:
            return self._running(row, starts, task)
        lost = f"no word of it since {units.any_clock(last)}: killed, or lost with its node"
        words = (log and log.words) or lost
        return self._failed(row, starts, words, "multiply" if log else None, last)

    def _stands(self, row: Shard, state: str, starts: _Starts, **more: Any) -> Sighting:
        matrices = row.stop - row.start
        return Sighting(row.shard, state, matrices, row.bytes, starts.count, **more)

    def _running(self, row: Shard, starts: _Starts, task: _LiveFile | None) -> Sighting:
        if task is None:
            return self._stands(row, RUNNING, starts, started=starts.last)
        progress, device = None, task.device
        if task.done is not None and task.matrices:
            progress = min(1.0, task.done / task.matrices)
        return self._stands(
            row, RUNNING, starts,
            started=starts.last if task.started is None else task.started,
            device=device and DeviceOfNode(device.name, device.uuid, task.node),
            progress=progress,
            gauge=asdict(task.gauge) if task.gauge else None,
        )  # fmt: skip

    def _failed(
        self, row: Shard, starts: _Starts, reason: str, rule: str | None, at: float
    ) -> Sighting:
        results = self._plan.results
        log = str(results.log(rule, row.shard).relative_to(results.root)) if rule else None
        failure = FailureReason(one_line(reason)[:_MOST_LETTERS], log, at)
        began = starts.last if rule != "shard" else None
        return self._stands(row, FAILED, starts, started=began, failure=failure)

    # Its other files.

    def _live(self, shard: str, attempts: int) -> tuple[_LiveFile | None, float]:
        """What a task at work says of itself, and when it said so last.

        What the task of an earlier attempt has left is nothing: it was killed.
        """
        status = self._folders["live"].get(f"{shard}.json")
        if status is None:
            return None, 0.0
        path = self._plan.results.live / f"{shard}.json"
        task = self._read(path, status, lambda: _live_file(path))
        if task is None or task.shard != shard or task.attempt < attempts:
            return None, 0.0
        return task, status.st_mtime

    def _starts(self, shard: str) -> _Starts:
        status = self._folders["multiply"].get(f"{place(shard)}.starts")
        if status is None:
            return _Starts()
        path = self._plan.results.starts(shard)
        return self._read(path, status, lambda: _journal(path, status.st_mtime, self._planned))

    def _log(self, rule: str, shard: str, began: float | None) -> _LogEnd | None:
        """The log of an attempt, where it is not of an earlier one."""
        status = self._folders[rule].get(f"{place(shard)}.log")
        since = self._planned if began is None else began - _SETTLING_SECONDS
        if status is None or status.st_mtime < since:
            return None
        path = self._plan.results.log(rule, shard)
        return self._read(path, status, lambda: _end_of(path, status.st_mtime, shard))

    def _read(self, path: Path, status: os.stat_result, read: Callable[[], _T]) -> _T:
        """What a file holds, read where it has changed."""
        return self._cache.get(str(path), (status.st_mtime_ns, status.st_size), read)


class _Folder:
    """The per-shard files of a folder, of which few are asked for: it is listed at the first."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def names(self) -> set[str]:
        """All of them, by `place` and suffix."""
        names: set[str] = set()
        with suppress(OSError):
            for folder in folders(self._path):
                before = "" if folder == self._path else f"{folder.name}/"
                names.update(f"{before}{name}" for name in os.listdir(folder))
        return names

    def get(self, name: str) -> os.stat_result | None:
        """The facts of a file, named by `place`; None where there is none."""
        try:
            return os.stat(f"{self._path}/{name}") if name in self.names else None
        except OSError:
            return None

    def stamp(self, name: str) -> _Stamp | None:
        """When it was written, and its size."""
        status = self.get(name)
        return status and (status.st_mtime_ns, status.st_size)


def stamped(file: Path) -> _Stamp | None:
    """When a file was written, in nanoseconds, and its size; None where there is none."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _live_file(path: Path) -> _LiveFile | None:
    try:
        task = msgspec.json.decode(small.read(path) or b"", type=_LiveFile)
    except (IntegrityError, ValueError, RecursionError):
        return None
    figures = asdict(task.gauge).values() if task.gauge else ()
    if any(isinstance(figure, int | float) and abs(figure) >= 2**63 for figure in figures):
        return None  # no device says so, and no metric can
    return task if task.schema == live.SCHEMA else None


def _journal(path: Path, written: float, planned: float) -> _Starts:
    """The journal of a shard; a line that cannot be read counts as of when the last was written."""
    try:
        lines = (small.read(path) or b"").splitlines()
    except IntegrityError:
        return _Starts()
    times = [_start(line, written) for line in lines]
    if not times:
        return _Starts()
    return _Starts(len(times), sum(time >= planned for time in times), times[-1])


def _start(line: bytes, otherwise: float) -> float:
    try:
        time = float(line.split(b"\t")[0])
    except ValueError:
        time = math.nan
    return time if math.isfinite(time) else otherwise


def _end_of(path: Path, at: float, shard: str) -> _LogEnd:
    text = logs.read_tail(path)
    errors = logs.find_errors(text)
    return _LogEnd(
        at, errors[-1] if errors else None, logs.find_last_words(text), logs.ended_well(text, shard)
    )
