"""Results folders as runs leave them, made in moments: nothing is computed, no device is needed.

The plan is a real one, and receipts, failures and the ledger have the form of real ones, so every
reader of a results folder takes them. Product files have their header and their size, and no byte
behind it is on the disk; `sum.npy` is real. The same arguments make the same folder.
"""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from shardwise import ALGORITHM
from shardwise.files import pieces
from shardwise.files.checksum import file_checksum
from shardwise.files.npy import padded_header, read_header
from shardwise.files.paths import Results
from shardwise.numerics import end_to_end
from shardwise.observe.status import Device
from shardwise.plan.plan import Plan, Shard
from shardwise.plan.problem import ITEM_BYTES
from shardwise.records import failures, ledger, receipts
from shardwise.records.failures import Failure
from shardwise.records.store import mark

from tests import factories

NOW = 1_795_000_000.0
"""The moment at which a folder shows what was asked for; pass it to `Observer.look`."""

HELD = {"waiting": 0.25, "read": 4.0, "compute": 5.0, "write": 0.75}
"""What held a shard up, in seconds; those that are ``slow`` take four times as long."""

_MEMORY = 150_000_000_000


@dataclass
class Pretended:
    """A results folder as it is at a moment, and the receipts of its shards.

    ``roles`` has ids of shards by what they are, see `run`; ``slow`` and ``unproven`` are ``done``,
    ``suspect`` are ``failed``, ``unknown`` are ``damaged``, ``lost`` are ``waiting``.
    """

    plan: Plan
    at: float
    roles: dict[str, list[str]]
    receipts: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """The results folder."""
        return self.plan.results.root

    def name(self, shard: str) -> str:
        """What the files of a shard's products are called."""
        return self.plan.shards[shard].name

    def receipt(self, shard: str) -> Path:
        """The receipt of a shard's products."""
        return self.plan.results.receipt(self.name(shard))


def run(
    folder: Path, *, shards: int = 48, devices: int = 4, nodes: int = 2, slow: int = 0,
    failed: int = 0, lost: int = 0, running: int = 0, waiting: int = 0,
    damaged: int = 0, unknown: int = 0, unproven: int = 0, suspect: int = 0, summed: bool = True,
    matrices: int = 20_000, dim: int = 512, at: float = NOW, **config: Any,
) -> Pretended:  # fmt: skip
    """Make a results folder, ``folder/results``.

    Parameters
    ----------
    shards
        How many the plan has. Those that have no other part are done.
    devices
        GPUs on all nodes together; 0: each node computes on its CPU.
    slow, unproven
        Of those that are done: which took four times as long; which have no proof.
    failed, suspect
        Whose last attempt left a failure; one that says that a product failed its proof.
    running, waiting, lost
        Whose task is at work at ``at``; that none has begun; whose task was killed.
    damaged, unknown
        Whose receipt is cut off; is of another schema.
    summed
        Whether the ledger and the sum follow, where all shards are done.
    matrices, dim
        Matrices a shard, and their size.
    config
        Other keys of the config, such as ``keep`` or ``verify``.
    """
    plan = factories.plan(folder, **{
        "materialize": False, "shards": shards, "backend": "auto" if devices else "numpy",
        "synthetic": {"matrices": matrices * shards, "dim": dim, "dtype": "float32", "seed": 0},
    } | config)  # fmt: skip
    rest = list(plan.shards)

    def take(count: int) -> list[str]:
        rest[:], taken = rest[: len(rest) - count], rest[len(rest) - count :]
        return taken

    parts = {"waiting": waiting + lost, "running": running, "failed": failed + suspect,
             "damaged": damaged + unknown}  # fmt: skip
    roles = {role: take(count) for role, count in parts.items()} | {"done": rest}
    for role, of, count in (("lost", "waiting", lost), ("suspect", "failed", suspect),
                            ("unknown", "damaged", unknown), ("slow", "done", slow),
                            ("unproven", "done", unproven)):  # fmt: skip
        roles[role] = roles[of][:count]
    made = Pretended(plan, at, roles)
    for path in (plan.results.receipt(""), plan.results.log("multiply"), plan.results.live / "x"):
        path.parent.mkdir(parents=True, exist_ok=True)
    _work(made, _machines(devices, nodes))
    if summed and len(made.receipts) == shards:
        _sum(made)
    return made


def _machines(devices: int, nodes: int) -> list[Device]:
    if not devices:
        return [Device("CPU", None, f"node{n + 1:02}") for n in range(nodes)]
    uuids = [f"GPU-{n:08x}-1111-2222-3333-{n:012x}" for n in range(devices)]
    return [Device("NVIDIA H200", u, f"node{n % nodes + 1:02}") for n, u in enumerate(uuids)]


def _work(made: Pretended, machines: list[Device]) -> None:
    """Let the machines take shards in turn, and write down what each would have left.

    The last shard ended a minute before the moment that was asked for.
    """
    jobs, free = [], dict.fromkeys(machines, 0.0)
    for row in made.plan.shards.values():
        machine = min(free, key=free.__getitem__)
        held = {k: v * (4 if row.shard in made.roles["slow"] else 1) for k, v in HELD.items()}
        jobs.append((row, machine, free[machine], held))
        free[machine] += sum(held.values()) + 0.25
    begin = made.at - 60.0 - max(free.values())
    roles = {role: set(shards) for role, shards in made.roles.items()}
    for row, machine, began, held in jobs:
        if row.shard in roles["running"] | roles["lost"]:
            _run(made, row, machine, made.at - (300.0 if row.shard in roles["lost"] else 1.0))
        elif row.shard in roles["failed"]:
            _fail(made, row, machine, begin + began, row.shard in roles["suspect"])
        elif row.shard not in roles["waiting"]:
            _finish(made, row, machine, begin + began, held)


def _told(device: Device) -> dict[str, Any]:
    """As a receipt has it."""
    gpu = {"uuid": device.uuid, "memory": _MEMORY, "source": "lease"} if device.uuid else {}
    return {"name": device.name, "granted": None, **gpu}


def _finish(
    made: Pretended, row: Shard, machine: Device, started: float, held: dict[str, float]
) -> None:
    finished = started + math.fsum(held.values())
    receipt = _receipt(made.plan, row, machine, (started, finished)) | {"held": held}
    if row.shard in made.roles["unproven"]:
        receipt["proof"] = None
    text = receipts._text(receipt)
    if row.shard in made.roles["unknown"]:
        text = receipts._text(receipt | {"schema": 7})
    elif row.shard in made.roles["damaged"]:
        text = text[: len(text) // 2]
    else:
        made.receipts[row.shard] = receipt
    _write(made.receipt(row.shard), text, finished)
    facts, path = receipt["file"], made.plan.results.product(row.name)
    path.write_bytes(padded_header(tuple(facts["shape"]), np.dtype(facts["dtype"])))
    os.truncate(path, facts["bytes"])


def _fail(made: Pretended, row: Shard, machine: Device, at: float, suspect: bool) -> None:
    results, words = made.plan.results, f"device {machine.uuid}: out of memory"
    if suspect:
        words = "a product failed its proof; nothing was written"
    log = results.log("multiply", row.name)
    _write(log, f"ERROR {words}\n".encode(), at)
    failure = Failure(
        row.name, 75, words, machine.node, at, machine.uuid, 1, "0" * 12,
        str(log.relative_to(results.root)),
    )  # fmt: skip
    fail(results, row.name, failure)
    if suspect and machine.uuid:
        fail(results, f"{failures.DEVICE}{machine.uuid}", failure)


def _run(made: Pretended, row: Shard, machine: Device, at: float) -> None:
    """A task that has done half of its shard, and said so last at a moment."""
    count = row.stop - row.start
    live = {
        "schema": 1, "shard": row.shard, "attempt": 1, "started": made.at - 5.0, "at": at,
        "node": machine.node, "process": 1000, "job": None,
        "device": {"name": machine.name, "uuid": machine.uuid},
        "matrices": count, "done": count // 2,
    }  # fmt: skip
    _write(made.plan.results.live / f"{row.name}.json", json.dumps(live).encode(), at)


def _receipt(
    plan: Plan, row: Shard, machine: Device, moments: tuple[float, float]
) -> dict[str, Any]:
    """A receipt as a task writes it, but for what held it up."""
    shape, dtype = (row.stop - row.start, *plan.problem.product_shape), plan.problem.product_dtype
    nodes = plan.nodes_of(row.shard)
    if nodes["nodes"]:
        shape, dtype = (len(nodes["nodes"]), *shape[1:]), plan.problem.sum_dtype
    size = np.dtype(dtype).itemsize
    cut = pieces.checksum_pieces(pieces.natural_row(shape, size), size)
    facts = {
        "name": f"{row.name}.npy", "shape": list(shape), "dtype": dtype,
        "bytes": len(padded_header(shape, np.dtype(dtype))) + math.prod(shape) * size,
        "checksum": f"{row.start:032x}", "row_bytes": cut[0], "piece_bytes": cut[1],
    }  # fmt: skip
    told = {"contribution": -31.05, "reference": -31.05, "mass": 464.9, "tolerance": 0.0002,
            "seed": end_to_end.SEED}  # fmt: skip
    proof = {"method": "freivalds", "vectors": 4, "seed": row.start}
    return {
        "shard": row.shard, "start": row.start, "stop": row.stop, "key": row.key,
        "keep": plan.settings.keep, "backend": "cupy" if machine.uuid else "numpy",
        "device": _told(machine), "attempt": 1,
        "file": facts | {key: each for key, each in nodes.items() if each},
        "input_checksum": f"{row.stop:032x}", "witness": told,
        "proof": proof if plan.settings.verify else None, "compute": "float32",
        **_origin("multiply", machine.node, *moments),
    }  # fmt: skip


def _origin(stage: str, node: str, started: float, finished: float) -> dict[str, Any]:
    return {
        "stage": stage, "algorithm": ALGORITHM[stage],
        "versions": {"shardwise": "0.1.0", "python": "3.11.7", "numpy": "2.4.6"},
        "commit": None, "host": node, "node": node, "job": None, "process": 1000,
        "started": started, "finished": finished,
    }  # fmt: skip


def _write(path: Path, text: bytes, at: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    os.utime(path, (at, at))


def fail(results: Results, name: str, failure: Failure) -> None:
    """A failure of a shard, or of a stage such as ``reduce-KEY``, as who failed writes it."""
    _write(results.failure(name), msgspec.json.encode(failure), failure.at)


def _sum(made: Pretended) -> None:
    """The ledger, the sum and its receipt."""
    plan = made.plan
    found: Sequence[Any] = [factories.receipt(plan, shard) for shard in made.receipts]
    plan.results.ledger.write_bytes(ledger.format_table(map(ledger.format_line, found)))
    path = plan.results.statistic("sum")
    total = _total(plan.problem.product_shape)
    path.write_bytes(padded_header(total.shape, total.dtype) + total.tobytes())
    cut = pieces.result_pieces(total.size, ITEM_BYTES[plan.element_type], total.itemsize)
    checksum = file_checksum(path, read_header(path).offset, *cut)
    ended, proven = max(receipt.finished for receipt in found), plan.settings.verify
    end = {"end_to_end": {"shards": len(found), "off": 0.002}}
    summary = {
        "matrices": plan.problem.matrices, "shards": len(found),
        "product": plan.problem.product, "keep": plan.settings.keep, "proven": proven,
        **(end if proven else {"no_end_to_end": "verify is false"}),
        "plan": plan.facts.digest, "config": plan.facts.config_digest,
        "made_by": receipts.count_makers(found), "ranks": 2, "nodes": {found[0].node: 2},
        "scalars": {"count": total.size},
        "files": {"sum": receipts.describe_file(path, total.shape, "float64", checksum, *cut)},
        **_origin("reduce", found[0].node, ended + 1.0, ended + 21.0),
    }  # fmt: skip
    _write(plan.results.summary, receipts._text(summary), ended + 21.0)
    for marker in (plan.results.listed(plan.key), plan.results.summed(plan.key)):
        mark(marker)


def _total(shape: tuple[int, ...]) -> np.ndarray:
    """A sum with some structure, an outlier, and numbers that take many letters."""
    rows, columns = np.ogrid[: shape[0], : shape[1]]
    total = 4e6 * np.sin(rows / 9) * np.cos(columns / 13)
    total += 1e5 * np.random.default_rng(0).standard_normal(shape)
    total[0, 0] = 5e9
    return total
