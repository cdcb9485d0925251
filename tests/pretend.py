"""Results folders as runs on GPUs leave them, made in moments on any machine.

Only one small shard is computed; all shards get its product, as all matrices are alike. Receipts
are then rewritten with other devices and times. The same arguments make the same folder.
"""

import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from shardwise.files.paths import Results
from shardwise.observe.status import Device, Status, look
from shardwise.plan.plan import Plan, Shard
from shardwise.records import failures, ledger, receipts
from shardwise.records.failures import Failure

from tests import factories

NOW = 1_795_000_000.0
"""The moment for which a folder is made; pass it to `look`."""

HELD = {"waiting": 0.25, "read": 4.0, "compute": 5.0, "write": 0.75}
"""The seconds that a shard spends in each phase; ``slow`` shards take four times as long."""


@dataclass
class Pretended:
    """A results folder as it is at a moment, its receipts, and the ids of its shards by role."""

    plan: Plan
    at: float
    roles: dict[str, list[str]]
    receipts: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return self.plan.results.root

    def receipt(self, shard: str) -> Path:
        return self.plan.results.receipt(self.plan.shards[shard].name)

    def look(self) -> Status:
        return look(self.root, self.at)


def run(
    folder: Path, *, shards: int = 48, devices: int = 4, nodes: int = 2, slow: int = 0,
    failed: int = 0, running: int = 0, waiting: int = 0,
    damaged: int = 0, suspect: int = 0, summed: bool = True,
    matrices: int = 2, at: float = NOW, **config: Any,
) -> Pretended:  # fmt: skip
    """Make a results folder, ``folder/results``, as it is at a moment, ``at``.

    The nodes have ``devices`` GPUs in all; 0 means CPUs. The numbers of shards by role are given;
    all others are done, some of these ``slow``. ``failed`` and ``suspect`` shards
    have failed, suspect ones by their proof; ``damaged`` ones have a receipt that is cut off. There
    is a sum if all shards are done.
    """
    stack = np.repeat(factories.noise((1, 16, 16), "float32"), shards * matrices, axis=0)
    over = {"materialize": False, "shards": shards, **config}
    plan = factories.repeated(factories.plan(folder, stack, **over))
    rest, roles = list(plan.shards), dict[str, list[str]]()
    for role, count in (("waiting", waiting), ("running", running), ("failed", failed + suspect),
                        ("damaged", damaged)):  # fmt: skip
        rest, roles[role] = rest[: len(rest) - count], rest[len(rest) - count :]
    roles |= {"done": rest, "suspect": roles["failed"][:suspect]}
    roles["slow"] = rest[:slow]
    made = Pretended(plan, at, roles)
    _work(made, _machines(devices, nodes))
    if summed and len(made.receipts) == shards:
        ledger.write(plan)
        factories.reduced(plan)
    return made


def _machines(devices: int, nodes: int) -> list[Device]:
    if not devices:
        return [Device("CPU", None, f"node{n + 1:02}") for n in range(nodes)]
    uuids = [f"GPU-{n:08x}-1111-2222-3333-{n:012x}" for n in range(devices)]
    return [Device("NVIDIA H200", u, f"node{n % nodes + 1:02}") for n, u in enumerate(uuids)]


def _work(made: Pretended, machines: list[Device]) -> None:
    """Let the machines take shards in turn, and write the files that each shard would have left.

    The last shard ended about a minute before ``made.at``.
    """
    jobs, free = [], dict.fromkeys(machines, 0.0)
    for row in made.plan.shards.values():
        machine = min(free, key=free.__getitem__)
        slower = 4 if row.shard in made.roles["slow"] else 1
        held = {phase: slower * seconds for phase, seconds in HELD.items()}
        jobs.append((row, machine, free[machine], held))
        free[machine] += sum(held.values()) + 0.25
    begin = made.at - 60.0 - max(free.values())
    results, roles = made.plan.results, made.roles
    for row, machine, began, held in jobs:
        if row.shard in (*roles["done"], *roles["damaged"]):
            _finish(made, row, machine, begin + began, held)
            continue
        made.receipt(row.shard).unlink()
        results.product(row.name).unlink()
        if row.shard in roles["running"]:
            at = made.at - 5.0
            line = f"{at}\t{machine.node}\t1000\t\t{machine.name}\t{machine.uuid or ''}\n"
            _write(results.starts(row.name), line.encode(), at)
        elif row.shard in roles["failed"]:
            _fail(results, row, machine, begin + began, row.shard in roles["suspect"])


def _finish(
    made: Pretended, row: Shard, machine: Device, started: float, held: dict[str, float]
) -> None:
    path, finished = made.receipt(row.shard), started + math.fsum(held.values())
    said = json.loads(path.read_bytes()) | {
        "device": {"name": machine.name, "uuid": machine.uuid}, "host": machine.node,
        "node": machine.node, "started": started, "finished": finished, "held": held,
    }  # fmt: skip
    for key in ("schema", "digest"):
        del said[key]
    text = receipts._text(said)
    if row.shard in made.roles["damaged"]:
        text = text[: len(text) // 2]
    else:
        made.receipts[row.shard] = said
    _write(path, text, finished)


def _fail(results: Results, row: Shard, machine: Device, at: float, suspect: bool) -> None:
    words = f"device {machine.uuid}: out of memory"
    if suspect:
        words = "a product failed its proof; nothing was written"
    log = results.log("multiply", row.name)
    _write(log, f"ERROR {words}\n".encode(), at)
    said = str(log.relative_to(results.root))
    failure = Failure(row.name, 75, words, machine.node, at, machine.uuid, 1, "0" * 12, said)
    fail(results, row.name, failure)
    if suspect and machine.uuid:
        fail(results, f"{failures.DEVICE}{machine.uuid}", failure)


def _write(path: Path, text: bytes, at: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    os.utime(path, (at, at))


def fail(results: Results, name: str, failure: Failure) -> None:
    """Write the failure file of a shard, or of a stage such as ``reduce-KEY``."""
    _write(results.failure(name), msgspec.json.encode(failure), failure.at)
