"""How each shard of a plan stands, by its files: receipt, live file, journal of starts, log.

The first of these rules that fits decides:

1. *done*: the judge takes its receipt (`shardwise.records.judge`). No element is read.
2. *running*: its live file was renewed within :data:`FRESH_SECONDS`.
3. *damaged*: something else lies under the name of its receipt, or its product does not fit the
   receipt, and no task has begun the shard since.
4. *failed*: the log of the attempt that the journal notes last has an error, or that of the copying
   of its matrices has.
5. *waiting*: no task has begun it under this plan; or the last one ended well, and what it had
   written is gone.
6. *running*: its last sign of life (start, log, live file) is younger than :data:`FRESH_SECONDS`.
7. *failed*: it left no word of its end.

A journal and a log outlive a plan; what they say of times before this one was made is of another.
"""

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from shardwise import units
from shardwise.devices.telemetry import SUMMED
from shardwise.errors import IntegrityError, one_line
from shardwise.files import small
from shardwise.multiply import live
from shardwise.observe.observation import (
    DAMAGED,
    DONE,
    FAILED,
    RUNNING,
    WAITING,
    Device,
    Failure,
    Sighting,
    Timeline,
)
from shardwise.plan.plan import Plan, Shard
from shardwise.records import judge, ledger, logs, receipts
from shardwise.records.receipts import ProductReceipt, Timing

FRESH_SECONDS = 30.0
"""A task that lives gives a sign within this time: it renews its live file every 2 s."""

_GAUGES = (*SUMMED, "memory_total_bytes", "memory_unlisted_bytes",
           "ecc_uncorrected", "processes")  # fmt: skip

SKEW_SECONDS = 60.0
"""Clocks of nodes may differ by so much."""

_SETTLING_SECONDS = 5.0
"""A log may be so much older than the start that it is of: both have clocks of their own."""

_MOST_LETTERS = 1000
_MOST_NUMBER = 2.0**63
_MOST_NAMED = 20
_MOST_REASONS = 50
_REASON = re.compile(r"[a-z_]{1,60}")

_Stamp = tuple[int, int]
_T = TypeVar("_T")


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


@dataclass(frozen=True, slots=True)
class _Starts:
    """The journal of a shard: how many attempts, of them under this plan, and when the last began.

    A live file counts all of them.
    """

    every: int
    count: int
    last: float


@dataclass(frozen=True, slots=True)
class _Log:
    """The end of a log."""

    at: float
    error: str | None
    words: str | None
    well: bool


class Sightings:
    """Looks at the shards of a plan again and again; a file that has not changed is not read twice.

    Attributes
    ----------
    problems
        One line for each of the first shards, in the plan's order, that are damaged.
    """

    def __init__(self) -> None:
        self.problems: tuple[str, ...] = ()
        self._plan: Plan | None = None
        self._at = 0.0
        self._folders: dict[str, _Folder] = {}
        self._forget()

    def _forget(self) -> None:
        self._products: dict[str, tuple[tuple[_Stamp, _Stamp | None], _Product]] = {}
        self._others: dict[str, tuple[_Stamp, Any]] = {}
        self._devices: dict[Device, Device] = {}

    def look(self, plan: Plan, at: float) -> dict[str, Sighting]:
        """How the shards stand at a moment, in the plan's order."""
        if self._plan is None or self._plan.facts != plan.facts:
            self._forget()
        self._plan, self._at, results = plan, at, plan.results
        self._planned = _made_at(plan) - SKEW_SECONDS
        found = _listed(results.receipt("").parent)
        self._folders = {name: _Folder(results.root / "logs" / name)
                         for name in ("live", "multiply", "shard")}  # fmt: skip
        seen, flaws = {}, []
        for shard, row in plan.shards.items():
            product = self._product(row, found.get(f"{shard}.json"), found.get(f"{shard}.npy"))
            sighting = product.whole or self._unfinished(row, product)
            if sighting.attempts and sighting.state not in (DONE, RUNNING):
                sighting = self._done_meanwhile(row) or sighting
            if sighting.state == DAMAGED:
                flaws.append(str(product.flaw))
            seen[shard] = sighting
        more = len(flaws) - _MOST_NAMED
        self.problems = (
            *map(one_line, flaws[:_MOST_NAMED]),
            *([f"… and {more} more shards whose files cannot be used"] if more > 0 else []),
        )
        return seen

    def ledger_lines(self) -> dict[str, bytes]:
        """The lines that the shards that are done make in the ledger, in the plan's order."""
        found = {shard: self._products.get(shard) for shard in self._plan.shards}  # type: ignore[union-attr]
        return {shard: known[1].line for shard, known in found.items() if known and known[1].whole}

    # The product.

    def _product(self, row: Shard, receipt: _Stamp | None, product: _Stamp | None) -> _Product:
        if receipt is None:
            self._products.pop(row.shard, None)
            return _NOTHING
        if product is None:  # or it came, before its receipt, where the listing had gone by
            product = stamped(self._plan.results.product(row.shard))  # type: ignore[union-attr]
        stamp = receipt, product
        known = self._products.get(row.shard)
        if known is None or known[0] != stamp:
            made = self._read_product(row, receipt[0] / 1e9)
            known = self._products[row.shard] = stamp, made
        return known[1]

    def _read_product(self, row: Shard, written: float) -> _Product:
        plan: Plan = self._plan  # type: ignore[assignment]
        try:
            receipt = judge.check_product(plan, row.shard)
        except (receipts.NoReceipt, judge.OtherPlan):
            return _NOTHING  # of an earlier plan: the next run replaces it
        except receipts.UnknownSchema as error:
            return _Product(flaw=str(error), written=written)
        except IntegrityError as error:
            cure = f"{ledger.build_repair(plan, [row.shard])}, then snakemake as before"
            return _Product(flaw=f"{error}; {cure}", written=written)
        return _Product(self._done(row, receipt), line=ledger.format_line(receipt))

    def _done(self, row: Shard, receipt: ProductReceipt) -> Sighting:
        used = receipt.device
        device = Device(one_line(used.name)[:_MOST_LETTERS], used.uuid, receipt.node)
        return Sighting(
            row.shard, DONE, row.stop - row.start, row.bytes,
            attempts=self._attempts(row.shard, receipt.attempt),
            started=receipt.started,
            finished=receipt.finished,
            device=self._devices.setdefault(device, device),
            backend=receipt.backend,
            proven=receipt.proof is not None,
            timeline=_timeline(receipt.timeline),
            telemetry=receipt.telemetry,
            process=receipt.process,
        )  # fmt: skip

    def _attempts(self, shard: str, count: int) -> int:
        """How often a shard that is done was begun; those under earlier plans do not count."""
        starts = self._starts(shard) if count > 1 else None
        return max(1, count - starts.every + starts.count) if starts else count

    def _device(self, facts: Any, node: Any) -> Device | None:
        if not isinstance(facts, dict) or (name := _text(facts.get("name"))) is None:
            return None
        made = Device(name, _text(facts.get("uuid")), _text(node) or "an unknown node")
        return self._devices.setdefault(made, made)

    # What is not done.

    def _unfinished(self, row: Shard, product: _Product) -> Sighting:
        """How a shard without a whole product stands."""
        starts = self._starts(row.shard)
        said, said_at = self._live(row.shard, starts.every if starts else 0)
        if said and self._at - said_at < FRESH_SECONDS:
            return self._running(row, starts, said)
        began = starts.last if starts and starts.last >= self._planned else None
        if product.flaw and (began is None or began <= product.written):
            return self._without(row, DAMAGED, starts)
        log = self._log("multiply", row.shard, began)
        if log and log.error:
            return self._failed(row, starts, log.error, "multiply", log.at)
        if began is None:
            return self._not_begun(row, starts)
        if log and log.well:
            return self._without(row, WAITING, starts)
        return self._silent(row, starts, said or {}, max(began, log.at if log else 0, said_at), log)

    def _done_meanwhile(self, row: Shard) -> Sighting | None:
        """A shard that was done after its folder was listed, and so has no live file any more."""
        receipt = stamped(self._plan.results.receipt(row.shard))  # type: ignore[union-attr]
        return self._product(row, receipt, None).whole

    def _not_begun(self, row: Shard, starts: _Starts | None) -> Sighting:
        """How a shard stands that no task has begun to multiply."""
        copy = self._log("shard", row.shard, None)
        if copy and copy.error and not self._copied(row.shard):
            return self._failed(row, starts, copy.error, "shard", copy.at)
        return self._without(row, WAITING, starts)

    def _silent(
        self, row: Shard, starts: _Starts | None, said: Mapping[str, Any], last: float,
        log: _Log | None,
    ) -> Sighting:  # fmt: skip
        """How a shard stands whose task has said nothing of its end; ``last`` is its last sign."""
        if self._at - last < FRESH_SECONDS:
            return self._running(row, starts, said)
        lost = f"no word of it since {units.any_clock(last)}: killed, or lost with its node"
        words = (log and log.words) or lost
        return self._failed(row, starts, words, "multiply" if log else None, last)

    def _without(self, row: Shard, state: str, starts: _Starts | None, **more: Any) -> Sighting:
        attempts = starts.count if starts else 0
        return Sighting(
            row.shard, state, row.stop - row.start, row.bytes, attempts=attempts, **more
        )

    def _running(self, row: Shard, starts: _Starts | None, said: Mapping[str, Any]) -> Sighting:
        done, matrices = _amount(said.get("done")), _amount(said.get("matrices"))
        began = _number(said.get("started"))
        return self._without(
            row, RUNNING, starts,
            started=starts.last if began is None and starts else began,
            device=self._device(said.get("device"), said.get("node")),
            progress=min(1.0, done / matrices) if done is not None and matrices else None,
            gauge=_gauge(said.get("gauge")),
        )  # fmt: skip

    def _failed(
        self, row: Shard, starts: _Starts | None, reason: str, rule: str | None, at: float
    ) -> Sighting:
        log = f"logs/{rule}/{row.shard}.log" if rule else None
        failure = Failure(one_line(reason)[:_MOST_LETTERS], log, at)
        began = starts.last if starts and rule != "shard" else None
        return self._without(row, FAILED, starts, started=began, failure=failure)

    # Its other files.

    def _live(self, shard: str, attempts: int) -> tuple[Mapping[str, Any] | None, float]:
        """What a task at work says of itself, and when it said so last.

        What the task of an earlier attempt has left is nothing: it was killed.
        """
        found = self._folders["live"].get(f"{shard}.json")
        if found is None:
            return None, 0.0
        path = self._plan.results.live / f"{shard}.json"  # type: ignore[union-attr]
        said = self._read(path, found, lambda: small.said(path))
        fits = (
            isinstance(said, dict)
            and said.get("schema") == live.SCHEMA
            and said.get("shard") == shard
            and (_number(said.get("attempt")) or 0) >= attempts
        )
        return (said, found.st_mtime) if fits else (None, 0.0)

    def _starts(self, shard: str) -> _Starts | None:
        found = self._folders["multiply"].get(f"{shard}.starts")
        if found is None:
            return None
        path = self._plan.results.starts(shard)  # type: ignore[union-attr]
        return self._read(path, found, lambda: _journal(path, found.st_mtime, self._planned))

    def _log(self, rule: str, shard: str, began: float | None) -> _Log | None:
        """The log of an attempt, where it is not of an earlier one."""
        found = self._folders[rule].get(f"{shard}.log")
        since = self._planned if began is None else began - _SETTLING_SECONDS
        if found is None or found.st_mtime < since:
            return None
        path = self._plan.results.log(rule, shard)  # type: ignore[union-attr]
        return self._read(path, found, lambda: _end_of(path, found.st_mtime, shard))

    def _copied(self, shard: str) -> bool:
        return self._plan.results.shard_receipt(shard).exists()  # type: ignore[union-attr]

    def _read(self, path: Path, found: os.stat_result, read: Callable[[], _T]) -> _T:
        """What a file holds, read where it has changed."""
        stamp, name = (found.st_mtime_ns, found.st_size), str(path)
        known = self._others.get(name)
        if known is None or known[0] != stamp:
            known = self._others[name] = stamp, read()
        return known[1]


_NOTHING = _Product()


class _Folder:
    """The files of a folder by name, of which few are asked for: it is listed at the first."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def _names(self) -> set[str]:
        try:
            return set(os.listdir(self._path))
        except OSError:
            return set()

    def get(self, name: str) -> os.stat_result | None:
        """The facts of a file; None where there is none."""
        try:
            return os.stat(self._path / name) if name in self._names else None
        except OSError:
            return None


def _made_at(plan: Plan) -> float:
    """When a plan was made; 0 where it does not say."""
    return plan.facts.made.time if plan.facts.made else 0.0


def _listed(folder: Path) -> dict[str, _Stamp]:
    """Receipts and products of a folder: when each was written, in nanoseconds, and its size."""
    found = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                # A link that leads nowhere, and what is gone by now, has none.
                if entry.name.endswith((".json", ".npy")) and (stamp := stamped(entry)):
                    found[entry.name] = stamp
    except OSError:
        pass
    return found


def stamped(file: Path | os.DirEntry[str]) -> _Stamp | None:
    """When a file was written, in nanoseconds, and its size; None where there is none."""
    try:
        facts = file.stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size


def _journal(path: Path, written: float, planned: float) -> _Starts | None:
    """The journal of a shard; a line that cannot be read counts as of when the last was written."""
    try:
        text = small.read(path) or b""
    except IntegrityError:
        return None
    times = [_start(line, written) for line in text.splitlines()]
    if not times:
        return None
    return _Starts(len(times), sum(time >= planned for time in times), times[-1])


def _start(line: bytes, otherwise: float) -> float:
    try:
        time = float(line.split(b"\t")[0])
    except ValueError:
        time = math.nan
    return time if math.isfinite(time) else otherwise


def _end_of(path: Path, at: float, shard: str) -> _Log:
    text = logs.read_tail(path)
    errors = logs.find_errors(text)
    return _Log(
        at, errors[-1] if errors else None, logs.find_last_words(text), logs.ended_well(text, shard)
    )


# Values of files that anybody may have written.


def _number(value: Any) -> float | None:
    return units.number(value, _MOST_NUMBER)


def _amount(value: Any) -> float | None:
    """A number from 0 on."""
    number = _number(value)
    return number if number is not None and number >= 0 else None


def _text(value: Any) -> str | None:
    return one_line(value)[:_MOST_LETTERS] if isinstance(value, str) else None


def _timeline(timing: Timing | None) -> Timeline | None:
    return Timeline(timing.held, timing.busy, timing.work) if timing else None


def _gauge(value: Any) -> dict[str, Any] | None:
    """A gauge with each of its keys; what is no figure becomes None."""
    if not isinstance(value, dict):
        return None
    throttled, names = value.get("throttled"), None
    if isinstance(throttled, list):
        some = throttled[:_MOST_REASONS]
        names = [name for name in some if isinstance(name, str) and _REASON.fullmatch(name)]
    return {**{key: _number(value.get(key)) for key in _GAUGES}, "throttled": names}
