"""Look at a results folder: the state of each shard comes from its files alone.

A shard with product and receipt under its name is done; one with a fresh live file is running; one
with a failure file has failed; any other waits. Nothing is written, and no scheduler is asked.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from shardwise.errors import IntegrityError, ShardwiseError, one_line
from shardwise.files import small
from shardwise.files.paths import Results, for_bash, list_names, place, stamp
from shardwise.observe.status import (
    DAMAGED,
    DONE,
    FAILED,
    FRESH_SECONDS,
    RUNNING,
    WAITING,
    Device,
    ShardStatus,
    Status,
)
from shardwise.plan import plan as plans
from shardwise.plan.plan import Plan, Shard
from shardwise.records import failures, judge, ledger, live, locks, receipts
from shardwise.records.receipts import Line, Moment, SumReceipt, UsedDevice, Whole
from shardwise.units import any_clock

_MOST_LETTERS, _MOST_NAMED = 1000, 20
_T = TypeVar("_T")


class _LiveFile(msgspec.Struct):
    """What a running task says about itself, as `shardwise.records.live` writes it."""

    schema: int
    attempt: int = 0
    node: Line = "an unknown node"
    device: UsedDevice | None = None
    started: Moment | None = None
    matrices: Whole = 0
    done: Whole | None = None


class Observer:
    """Looks at a results folder repeatedly; a file that has not changed is not read again.

    ``last`` is the result of the last look, for callers between two looks.
    """

    def __init__(self, root: Path) -> None:
        self.results = Results(root)
        self.last: Status | None = None
        self._products = f"{self.results.products}/"  # as text: there may be 100,000
        self._cache: dict[Path | str, tuple[Any, Any]] = {}

    def look(self, at: float | None = None) -> Status:
        """What the folder shows now, or at time ``at``; its content never makes this fail."""
        at, results = time.time() if at is None else at, self.results
        living = locks.is_living(results)  # first: what a run leaves at its end is seen below
        seen = Status(results, at)
        plan = self._read(_plan, results.plan, results.plan_facts)
        if isinstance(plan, str):
            seen = replace(seen, problems=(plan,))
        elif plan:
            # In the order in which a task leaves them, so that none that ends meanwhile is missed.
            tops = results.live, results.failed, results.products
            there = [list_names(top) for top in tops]
            found = {shard: self._shard(plan, row, there, at) for shard, row in plan.shards.items()}
            failed = {name.removesuffix(".json") for name in there[1]}
            stages = self._failures(failed, "", f"-{plan.key}")
            suspects = self._failures(failed, failures.DEVICE, "")
            summary, flaw = _summed(plan)
            said = [shard.flaw for shard in found.values() if shard.flaw][:_MOST_NAMED]
            said += [f"{uuid} of {w.host} failed: {w.reason}" for uuid, w in suspects.items()]
            said += [flaw] if flaw else []
            seen = Status(results, at, plan, found, summary, stages, suspects, tuple(said), flaw)
        self.last = seen = replace(seen, living=bool(seen.running) or living)
        return seen

    def _shard(self, plan: Plan, row: Shard, there: Sequence[set[str]], at: float) -> ShardStatus:
        results, name, (living, failed, done) = self.results, f"{place(row.name)}.json", there
        product = f"{name[:-5]}.npy"
        if name in done and product in done:
            paths = self._products + name, self._products + product
            return self._read(lambda _: _judge(plan, row), *paths) or _waiting(row)
        path, task, seen, why = results.live / f"{row.name}.json", None, 0.0, None
        if f"{row.name}.json" in living:
            task, seen = self._read(_task, path), (stamp(path) or (0, 0))[0] / 1e9
        for file in (name, f"copy-{row.input_name}.json"):
            why = why or (self._failure(file) if file in failed else None)
        if task and at - seen < FRESH_SECONDS:  # whatever an earlier try has failed of
            return _running(row, task)
        if why:
            return replace(_waiting(row), state=FAILED, attempts=why.attempt, failure=why)
        lost = f"no sign of life since {any_clock(seen)}: killed, or lost with its node"
        flaw = f"{row.shard}: its task on {task.node} has given {lost}" if task else ""
        return replace(_waiting(row), flaw=flaw)

    def _failures(self, names: set[str], begin: str, end: str) -> dict[str, failures.Failure]:
        """Failures by what their names say between these."""
        wanted = sorted(name for name in names if name.startswith(begin) and name.endswith(end))
        found = {name: self._failure(f"{name}.json") for name in wanted}
        inner = {name: one_line(name.removeprefix(begin).removesuffix(end)) for name in wanted}
        return {inner[name]: why for name, why in found.items() if why}

    def _failure(self, name: str) -> failures.Failure | None:
        return self._read(_failure, self.results.failed / name)

    def _read(self, read: Callable[..., _T], *paths: Path | str) -> _T | None:
        """What is read of some files, again when one has changed; None if none is there."""
        stamps, before = [stamp(path) for path in paths], self._cache.get(paths[0])
        if before is None or before[0] != stamps:
            found = read(paths[0]) if any(stamps) else None
            before = self._cache[paths[0]] = stamps, found
        return before[1]


def _plan(path: Path) -> Plan | str:
    try:
        return plans.load(path)
    except (ShardwiseError, OSError) as error:
        return one_line(f"the plan: {error}")


def _waiting(row: Shard) -> ShardStatus:
    return ShardStatus(row.shard, WAITING, row.stop - row.start, row.bytes)


def _judge(plan: Plan, row: Shard) -> ShardStatus:
    """A shard with a receipt: done, if the judge takes that."""
    try:
        own = judge.check_product(plan, row.shard)
    except receipts.NoReceipt:  # removed since the folder was listed
        return _waiting(row)
    except IntegrityError as error:
        cure = f"; {ledger.build_repair(plan, [row.shard])}, then snakemake as before"
        known = not isinstance(error, receipts.UnknownSchema)
        return replace(_waiting(row), state=DAMAGED, flaw=one_line(f"{error}{cure * known}"))
    return replace(
        _waiting(row), state=DONE, attempts=own.attempt, started=own.started,
        finished=own.finished, device=Device(own.device.name, own.device.uuid, own.node),
        proven=own.proof is not None, held=own.held,
    )  # fmt: skip


def _task(path: Path) -> _LiveFile | None:
    with suppress(IntegrityError, ValueError, RecursionError):
        task = msgspec.json.decode(small.read(path) or b"", type=_LiveFile)
        return task if task.schema == live.SCHEMA else None
    return None


def _running(row: Shard, task: _LiveFile) -> ShardStatus:
    known = task.done is not None and task.matrices
    return replace(
        _waiting(row), state=RUNNING, attempts=task.attempt, started=task.started,
        device=task.device and Device(task.device.name, task.device.uuid, task.node),
        progress=min(1.0, (task.done or 0) / task.matrices) if known else None,
    )  # fmt: skip


def _failure(path: Path) -> failures.Failure | None:
    why = failures.read(path)
    return why and replace(why, reason=one_line(why.reason)[:_MOST_LETTERS])


def _summed(plan: Plan) -> tuple[SumReceipt | None, str]:
    """The receipt of the sum of this plan, or why it cannot be used."""
    try:
        return judge.read_sum(plan), ""
    except IntegrityError as error:
        cure = f"; remove it (rm -f {for_bash(plan.results.summary)}), and run snakemake as before"
        known = not isinstance(error, receipts.UnknownSchema)
        return None, one_line(f"{error}{cure * known}")


def read_command(results: Results) -> str:
    """The command that made or continues the run, in one line; empty if no run has left it."""
    with suppress(IntegrityError):
        raw = small.read(results.command) or b""
        return one_line(raw.decode(errors="replace").strip())
    return ""
