"""Look at a results folder: the state of each shard comes from its files alone.

A shard with product and receipt under its name is done, or damaged. It is running if it was begun
since the last run of Snakemake began, has not failed since, and any job is at work. With a failure
file it has failed; otherwise it waits. Nothing is written, and no scheduler is asked.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwise.errors import IntegrityError, ShardwiseError, one_line
from shardwise.files import small
from shardwise.files.paths import Results, list_names, place, stamp
from shardwise.observe.status import (
    DAMAGED,
    DONE,
    FAILED,
    RUNNING,
    WAITING,
    Device,
    ShardStatus,
    Status,
)
from shardwise.plan import plan as plans
from shardwise.plan.plan import Plan, Shard
from shardwise.records import failures, judge, locks, receipts
from shardwise.records.failures import Failure, last_start

_MOST_NAMED = 20


class Observer:
    """Looks at a results folder repeatedly; plan and receipts are read once."""

    def __init__(self, root: Path) -> None:
        self.results = Results(root)
        self._stamps: list[Any] = []  # of the plan's files
        self._plan: Plan | str | None = None  # or what is wrong with it
        self._done: dict[str, ShardStatus] = {}

    def look(self, at: float | None = None) -> Status:
        """What the folder shows now, or at time ``at``; its content never makes this fail."""
        at, results = time.time() if at is None else at, self.results
        living = locks.is_living(results)  # asked first: what a run leaves at its end is seen below
        stamps = [stamp(path) for path in (results.plan, results.plan_facts)]
        if stamps != self._stamps:
            self._plan, self._done = _plan(results.plan) if all(stamps) else None, {}
            self._stamps = stamps
        seen = Status(results, at, living=living, command=_command(results))
        if isinstance(self._plan, Plan):
            seen = self._look(self._plan, seen)
        elif self._plan:
            seen = replace(seen, damage=(self._plan,))
        return seen

    def _look(self, plan: Plan, seen: Status) -> Status:
        results, stages = self.results, dict[str, Failure]()
        # Listed in the order in which a task writes them: one that ends meanwhile is not missed.
        busy = seen.living is None or locks.is_job_locked(results.living)
        begun = list_names(results.starts("any").parent) if busy else set()
        there = begun, list_names(results.failed), list_names(results.products)
        since = (stamp(results.command) or (0, 0))[0] / 1e9  # each run writes it as it begins
        shards = {shard: self._shard(plan, row, there, since) for shard, row in plan.shards.items()}
        self._done = {shard: one for shard, one in shards.items() if one.state == DONE}
        for name in sorted(there[1]):
            if name.endswith(f"-{plan.key}.json") and (why := failures.read(results.failed / name)):
                stages[one_line(name.rpartition("-")[0])] = why
        damage, summary = [shard.flaw for shard in shards.values() if shard.flaw], None
        try:
            summary = judge.read_sum(plan)
        except IntegrityError as error:
            damage.append(one_line(str(error)))
        return replace(
            seen, plan=plan, shards=shards, summary=summary, failures=stages,
            suspects=failures.suspects(results), damage=tuple(damage[:_MOST_NAMED]),
        )  # fmt: skip

    def _shard(
        self, plan: Plan, row: Shard, there: Sequence[set[str]], since: float
    ) -> ShardStatus:
        results, name, (begun, failed, done) = self.results, place(row.name), there
        one = ShardStatus(row.shard, WAITING, row.bytes)
        if f"{name}.json" in done and f"{name}.npy" in done:
            return self._done.get(row.shard) or _judge(plan, one)
        files = failed.intersection((f"{name}.json", f"copy-{row.input_name}.json"))
        found = filter(None, (failures.read(results.failed / file) for file in files))
        why = max(found, key=lambda failure: failure.at, default=None)
        start = last_start(results.starts(row.name)) if f"{name}.starts" in begun else None
        if start and start.at >= max(since, why.at if why else 0.0):
            uuid = start.uuid and one_line(start.uuid)
            device = Device(one_line(start.device), uuid, one_line(start.node))
            return replace(one, state=RUNNING, started=start.at, device=device)
        return replace(one, state=FAILED, failure=why) if why else one


def _plan(path: Path) -> Plan | str:
    try:
        return plans.load(path)
    except IntegrityError as error:
        return one_line(f"the plan: {error}")


def _judge(plan: Plan, one: ShardStatus) -> ShardStatus:
    """The state of a shard with product and receipt: done if the judge accepts them."""
    try:
        own = judge.check_product(plan, one.shard)
    except receipts.NoReceipt:  # removed since the folder was listed
        return one
    except IntegrityError as error:
        return replace(one, state=DAMAGED, flaw=one_line(str(error)))
    return replace(
        one, state=DONE, started=own.started, finished=own.finished,
        device=Device(own.device.name, own.device.uuid, own.node), held=own.held,
    )  # fmt: skip


def _command(results: Results) -> str:
    """The command that made or continues the run, in one line."""
    with suppress(ShardwiseError):
        return one_line((small.read(results.command) or b"").decode(errors="replace").strip())
    return ""
