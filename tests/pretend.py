"""Results folders as runs leave them, made in moments: nothing is computed, no device is needed.

The plan is a real one, and receipts, failures, logs and the ledger have the form of real ones, so
every reader of a results folder takes them. Product files have their header and their size, and no
byte behind it is on the disk; `sum.npy` is real. The same arguments make the same folder.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
from shardwise import ALGORITHM
from shardwise.files import pieces as piecess
from shardwise.files import small
from shardwise.files.checksum import file_checksum
from shardwise.files.npy import padded_header, read_header
from shardwise.files.paths import Results
from shardwise.numerics import end_to_end
from shardwise.observe.status import Device
from shardwise.plan import plan as plans
from shardwise.plan.nodes import count_nodes, cover
from shardwise.plan.plan import Plan, Shard
from shardwise.plan.problem import ITEM_BYTES
from shardwise.records import failures, ledger, receipts
from shardwise.records.failures import Failure
from shardwise.records.store import mark
from shardwise.units import clock

from tests import factories

NOW = 1_795_000_000.0
"""The moment at which a folder shows what was asked for; pass it to `Observer.look`."""

RATES = {"read": 3.9e9, "compute": 45e12, "write": 3.1e9}
"""Of every node: bytes a second; floating-point operations a second under ``compute``."""

GPU, MEMORY = "NVIDIA H200", 150_000_000_000
_SLOWER = 4.0
_VERSIONS = {"shardwise": "0.1.0", "python": "3.11.7", "numpy": "2.4.6"}


@dataclass
class Pretended:
    """A results folder as it is at a moment, and the receipts of its shards.

    ``roles`` has ids of shards by what they are: ``done`` (which ``slow`` and ``unproven`` are
    as well), ``running``, ``failed`` (of which ``suspect`` failed a proof), ``damaged`` (of which
    ``unknown`` have a receipt of another schema) and ``waiting`` (of which the tasks of ``lost``
    were killed).
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
    damaged: int = 0, unknown: int = 0, unproven: int = 0, suspect: int = 0,
    slow_device: bool = False, summed: bool = True,
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
    slow_device
        Whether the last device computes at a third of the others' speed.
    summed
        Whether the ledger and the sum follow, where all shards are done.
    matrices, dim
        Matrices a shard, and their size.
    config
        Other keys of the config, such as ``keep`` or ``verify``.
    """
    random = Random(0)
    plan = factories.plan(folder, **{
        "materialize": False, "shards": shards, "backend": "auto" if devices else "numpy",
        "synthetic": {"matrices": matrices * shards, "dim": dim, "dtype": "float32", "seed": 0},
    } | config)  # fmt: skip
    plan = _backdated(plan, at - 86_400.0)
    counts = {"failed": failed + suspect, "suspect": suspect, "damaged": damaged + unknown,
              "unknown": unknown, "unproven": unproven, "slow": slow}  # fmt: skip
    made = Pretended(plan, at, _roles(list(plan.shards), counts, running, waiting + lost, random))
    made.roles["lost"] = made.roles["waiting"][:lost]
    for path in (plan.results.receipt(""), plan.results.log("multiply"), plan.results.live / "x"):
        path.parent.mkdir(parents=True, exist_ok=True)
    _Writer(made, _machines(devices, nodes), slow_device, random).write()
    if summed and len(made.receipts) == shards:
        _sum(made, random)
    return made


def _backdated(plan: Plan, at: float) -> Plan:
    """The same plan, as if it had been made at another moment."""
    facts = asdict(plan.facts)
    facts["made"]["time"] = at
    path = plan.results.plan_facts
    facts["checksums"] |= {path.name: small.checksum(plans.dumps(facts))}
    path.write_text(json.dumps(facts, indent=1))
    for each in (path, plan.results.plan, plan.results.sources):
        os.utime(each, (at, at))
    return plans.load(plan.results.plan)


def _roles(
    ids: Sequence[str], counts: Mapping[str, int], running: int, waiting: int, random: Random
) -> dict[str, list[str]]:
    """Who plays which part: tasks at work came last, behind them is what waits."""
    begun = len(ids) - waiting
    found = {"waiting": [*ids[begun:]], "running": [*ids[begun - running : begun]]}
    rest = list(ids[: begun - running])
    bad = sorted(random.sample(rest, counts["failed"] + counts["damaged"]))
    random.shuffle(bad)
    found["failed"], found["damaged"] = bad[: counts["failed"]], bad[counts["failed"] :]
    found["suspect"] = found["failed"][: counts["suspect"]]
    found["unknown"] = found["damaged"][: counts["unknown"]]
    found["done"] = [shard for shard in rest if shard not in set(bad)]
    for role in ("unproven", "slow"):
        found[role] = random.sample(found["done"], counts[role])
    return {role: sorted(some) for role, some in found.items()}


# Devices.


def _told(device: Device) -> dict[str, Any]:
    """As a receipt has it."""
    gpu = {"uuid": device.uuid, "memory": MEMORY, "source": "lease"} if device.uuid else {}
    return {"name": device.name, "granted": None, **gpu}


def _machines(devices: int, nodes: int) -> list[Device]:
    if not devices:
        return [Device("CPU", None, f"node{n + 1:02}") for n in range(nodes)]
    return [
        Device(GPU, f"GPU-{n:08x}-1111-2222-3333-{n:012x}", f"node{n % nodes + 1:02}")
        for n in range(devices)
    ]


# Shards.


class _Writer:
    """Lets the machines take shards in turn, and writes down what each would have left.

    Time is told from 0 on first; all of it is then moved so that the tasks at work began just
    before the moment that was asked for.
    """

    def __init__(
        self, made: Pretended, machines: list[Device], slow_device: bool, random: Random
    ) -> None:
        self._made, self._plan, self._random = made, made.plan, random
        self._slow = machines[-1] if slow_device and len(machines) > 1 else None
        self._free = dict.fromkeys(machines, 0.0)
        self._is = {role: set(some) for role, some in made.roles.items()}

    def write(self) -> None:
        """Everything about every shard that was begun."""
        jobs = list(self._jobs())
        end = max((began + sum(held.values()) for *_, began, held in jobs), default=0.0)
        ended = self._made.at - (60.0 if not self._is["running"] else 1.0)
        for row, machine, began, held in jobs:
            started = began - end + ended
            if row.shard in self._is["running"] | self._is["lost"]:
                self._run(row, machine, held)
            elif row.shard in self._is["failed"]:
                self._fail(row, machine, started)
            else:
                self._finish(row, machine, started, held)

    def _jobs(self) -> Iterator[tuple[Shard, Device, float, dict[str, float]]]:
        """Who computes which shard from when on, and what `_held` says of it."""
        for row in self._plan.shards.values():
            if row.shard in self._is["waiting"] - self._is["lost"]:
                return
            machine = min(self._free, key=self._free.__getitem__)
            held = self._held(row, machine)
            yield row, machine, self._free[machine], held
            self._free[machine] += sum(held.values()) + self._random.uniform(0.05, 0.4)

    def _work(self, row: Shard) -> dict[str, int]:
        problem, count = self._plan.problem, row.stop - row.start
        return {"read": row.bytes, "compute": count * problem.flop, "write": row.product_bytes}

    def _held(self, row: Shard, machine: Device) -> dict[str, float]:
        """Seconds by what held the shard up.

        It is the disk, mostly, as products are large. No stage is faster than :data:`RATES`.
        """
        slower = _SLOWER if row.shard in self._is["slow"] else 1.0
        busy = {
            stage: slower * amount / (RATES[stage] * self._random.uniform(0.75, 0.95))
            for stage, amount in self._work(row).items()
        }
        if machine is self._slow:
            busy["compute"] *= 60
        shares = {"read": 1.0, "compute": 1.0, "write": 0.6}
        held = {stage: round(shares[stage] * seconds, 4) for stage, seconds in busy.items()}
        return {"waiting": round(self._random.uniform(0.02, 0.3), 4), **held}

    def _finish(self, row: Shard, machine: Device, started: float, held: dict[str, float]) -> None:
        # To a tenth of a millisecond, as the phases are: then these add up to the last digit.
        started = round(started, 4)
        finished = started + math.fsum(held.values())
        tries = 2 if self._random.random() < 0.03 else 1
        receipt = _receipt(self._plan, row, machine, tries, (started, finished)) | {"held": held}
        if row.shard in self._is["unproven"]:
            receipt["proof"] = None
        text = receipts._text(receipt)
        if row.shard in self._is["unknown"]:
            text = receipts._text(receipt | {"schema": 7})
        elif row.shard in self._is["damaged"]:
            text = text[: len(text) // 2]
        else:
            self._made.receipts[row.shard] = receipt
        results = self._plan.results
        _write(results.receipt(row.name), text, finished)
        _sparse(results.product(row.name), receipt["file"], finished)

    def _fail(self, row: Shard, machine: Device, started: float) -> None:
        results, ended = self._plan.results, started + 1.5
        suspect = row.shard in self._is["suspect"]
        words = f"device {machine.uuid or 'CPU'}: out of memory; nothing was written"
        words = "a product failed its proof; nothing was written" if suspect else words
        log = _log(results, row.name, [(started, "INFO", "begun"), (ended, "ERROR", words)])
        failure = Failure(
            row.name, 75, words, machine.node, ended, machine.uuid, 1, "0" * 12,
            str(log.relative_to(results.root)),
        )  # fmt: skip
        fail(results, row.name, failure)
        if suspect and machine.uuid:
            fail(results, f"{failures.DEVICE}{machine.uuid}", failure)

    def _run(self, row: Shard, machine: Device, held: Mapping[str, float]) -> None:
        results, at = self._plan.results, self._made.at
        done = self._random.uniform(0.1, 0.9)
        started = at - max(1.0, done * sum(held.values()))
        _log(results, row.name, [(started, "INFO", "begun")])
        device = {key: _told(machine)[key] for key in ("name", "uuid") if key in _told(machine)}
        live = {
            "schema": 1, "shard": row.shard, "attempt": 1, "started": started, "at": at - 1.0,
            "node": machine.node, "process": 1000, "job": None, "device": device,
            "matrices": row.stop - row.start, "done": int((row.stop - row.start) * done),
        }  # fmt: skip
        at -= 300.0 if row.shard in self._is["lost"] else 1.0
        _write(results.live / f"{row.name}.json", json.dumps(live).encode(), at)


def _receipt(
    plan: Plan, row: Shard, machine: Device, attempt: int, moments: tuple[float, float]
) -> dict[str, Any]:
    """A receipt as a task writes it, but for what later versions have added."""
    shape, dtype = _form(plan, row)
    natural = piecess.natural_row(shape, np.dtype(dtype).itemsize)
    pieces = piecess.checksum_pieces(natural, np.dtype(dtype).itemsize)
    header = padded_header(shape, np.dtype(dtype).newbyteorder("<"))
    facts = {
        "name": f"{row.name}.npy", "shape": list(shape), "dtype": dtype,
        "bytes": len(header) + math.prod(shape) * np.dtype(dtype).itemsize,
        "checksum": f"{row.start:032x}", "row_bytes": pieces[0], "piece_bytes": pieces[1],
    }  # fmt: skip
    if plan.settings.keep == "sum":
        facts["nodes"] = list(cover(row.start, row.stop))
    proof = {"method": "freivalds", "vectors": 4, "seed": row.start}
    told = {"contribution": -31.05, "reference": -31.05, "mass": 464.9, "tolerance": 0.0002,
            "seed": end_to_end.SEED}  # fmt: skip
    gpu = machine.uuid is not None
    return {
        "shard": row.shard, "start": row.start, "stop": row.stop, "key": row.key,
        "keep": plan.settings.keep, "backend": "cupy" if gpu else "numpy",
        "device": _told(machine), "attempt": attempt, "file": facts,
        "input_checksum": f"{row.stop:032x}", "witness": told,
        "proof": proof if plan.settings.verify else None,
        "compute": "float32",
        **_provenance("multiply", machine.node, *moments, {"driver": "580.65"} if gpu else {}),
    }  # fmt: skip


def _form(plan: Plan, row: Shard) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of the file of a shard."""
    problem, count, dtype = plan.problem, row.stop - row.start, plan.problem.product_dtype
    if plan.settings.keep == "sum":
        count, dtype = count_nodes(row.start, row.stop), problem.sum_dtype
    return (count, *problem.product_shape), dtype


def _provenance(
    stage: str, node: str, started: float, finished: float, versions: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "stage": stage, "algorithm": ALGORITHM[stage], "versions": {**_VERSIONS, **versions},
        "commit": None, "host": node, "node": node, "job": None, "process": 1000,
        "started": started, "finished": finished,
    }  # fmt: skip


def _write(path: Path, text: bytes, at: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    os.utime(path, (at, at))


def _sparse(path: Path, facts: Mapping[str, Any], at: float) -> None:
    header = padded_header(tuple(facts["shape"]), np.dtype(facts["dtype"]).newbyteorder("<"))
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(header)
        file.truncate(facts["bytes"])
    os.utime(path, (at, at))


def _log(results: Results, name: str, lines: Sequence[tuple[float, str, str]]) -> Path:
    """A log as `cli.run` makes it."""
    text = "".join(f"{_stamp(at)} {level} {words}\n" for at, level, words in lines)
    path = results.log("multiply", name)
    _write(path, text.encode(), lines[-1][0])
    return path


def fail(results: Results, name: str, failure: Failure) -> None:
    """A failure of a shard, or of a stage such as ``reduce-KEY``, as who failed writes it."""
    _write(results.failure(name), msgspec.json.encode(failure), failure.at)


def _stamp(at: float) -> str:
    return f"{clock(at)},{int(at % 1 * 1000):03}"


# All shards together.


def _sum(made: Pretended, random: Random) -> None:
    """The ledger, the sum and its receipt."""
    plan = made.plan
    found = [factories.receipt(plan, shard) for shard in made.receipts]
    plan.results.ledger.write_bytes(ledger.format_table(map(ledger.format_line, found)))
    path = plan.results.statistic("sum")
    total = _total(plan.problem.product_shape, random)
    header = padded_header(total.shape, total.dtype)
    path.write_bytes(header + total.tobytes())
    pieces = piecess.result_pieces(total.size, ITEM_BYTES[plan.element_type], total.itemsize)
    checksum = file_checksum(path, read_header(path).offset, *pieces)
    facts = receipts.describe_file(path, total.shape, "float64", checksum, *pieces)
    proven = plan.settings.verify
    ended = max(receipt.finished for receipt in found)
    end = {"end_to_end": {"shards": len(found), "off": 0.002}}
    summary = {
        "matrices": plan.problem.matrices, "shards": len(found),
        "product": plan.problem.product, "keep": plan.settings.keep, "proven": proven,
        **(end if proven else {"no_end_to_end": "verify is false"}),
        "plan": plan.facts.digest, "config": plan.facts.config_digest,
        "made_by": receipts.count_makers(found), "ranks": 2, "nodes": {found[0].node: 2},
        "scalars": {"count": int(total.size), "sum": float(total.sum()),
                    "mean": float(total.mean())},
        "files": {"sum": facts},
        **_provenance("reduce", found[0].node, ended + 1.0, ended + 21.0,
                      {"mpi": "MPICH Version: 5.0.2"}),
    }  # fmt: skip
    _write(plan.results.summary, receipts._text(summary), ended + 21.0)
    for marker in (plan.results.listed(plan.key), plan.results.summed(plan.key)):
        mark(marker)
    for other in (plan.results.ledger, path):
        os.utime(other, (ended + 0.5, ended + 0.5) if other != path else (ended + 20, ended + 20))


def _total(shape: tuple[int, ...], random: Random) -> np.ndarray:
    """A sum with some structure, an outlier, and numbers that take many letters."""
    rows, columns = np.ogrid[: shape[0], : shape[1]]
    noise = np.random.default_rng(random.randrange(2**32)).standard_normal(shape)
    total = 4e6 * np.sin(rows / 9) * np.cos(columns / 13) + 1e5 * noise
    total[0, 0] = 5e9
    return total
