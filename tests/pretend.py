"""Results folders as runs leave them, made in moments: nothing is computed, no device is needed.

The plan is a real one, and receipts, journals, logs and the ledger have the form of real ones, so
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

import numpy as np
from shardwise import ALGORITHM
from shardwise.devices import quarantine
from shardwise.files import pieces as piecess
from shardwise.files import small
from shardwise.files.checksum import file_checksum
from shardwise.files.npy import padded_header, read_header
from shardwise.files.paths import Results
from shardwise.numerics import end_to_end
from shardwise.observe.observation import DeviceOfNode
from shardwise.plan import plan as plans
from shardwise.plan.nodes import count_nodes, cover
from shardwise.plan.plan import Plan, Shard
from shardwise.records import ledger, receipts
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
    """A results folder as it is at a moment, the receipts of its shards, and devices' UUIDs.

    ``roles`` has ids of shards by what they are: ``done`` (which ``slow`` and ``unproven`` are
    as well), ``running``, ``failed`` (of which ``lost`` left no word), ``damaged`` (of which
    ``unknown`` have a receipt of another schema) and ``waiting``.
    """

    plan: Plan
    at: float
    roles: dict[str, list[str]]
    receipts: dict[str, dict[str, Any]] = field(default_factory=dict)
    quarantined: list[str] = field(default_factory=list)

    @property
    def root(self) -> Path:
        """The results folder."""
        return self.plan.results.root


def run(
    folder: Path, *, shards: int = 48, devices: int = 4, nodes: int = 2, slow: int = 0,
    failed: int = 0, lost: int = 0, running: int = 0, waiting: int = 0,
    damaged: int = 0, unknown: int = 0, unproven: int = 0, quarantined: int = 0,
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
    failed, lost
        Whose last attempt left an error in its log; left no word.
    running, waiting
        Whose task is at work at ``at``; that none has begun.
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
    counts = {"failed": failed + lost, "lost": lost, "damaged": damaged + unknown,
              "unknown": unknown, "unproven": unproven, "slow": slow}  # fmt: skip
    made = Pretended(plan, at, _roles(list(plan.shards), counts, running, waiting, random))
    for path in (plan.results.receipt(""), plan.results.starts(""), plan.results.live / "x"):
        path.parent.mkdir(parents=True, exist_ok=True)
    machines = _machines(devices, nodes)
    _Writer(made, machines, slow_device, random).write()
    if quarantined:
        made.quarantined = [machine.uuid for machine in machines[:quarantined]]
        for uuid in made.quarantined:
            why = "multiplied wrongly: its proof failed"
            quarantine.note(plan.results, uuid, why, next(iter(plan.shards)), lambda: at - 120.0)
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
    found["lost"] = found["failed"][: counts["lost"]]
    found["unknown"] = found["damaged"][: counts["unknown"]]
    found["done"] = [shard for shard in rest if shard not in set(bad)]
    for role in ("unproven", "slow"):
        found[role] = random.sample(found["done"], counts[role])
    return {role: sorted(some) for role, some in found.items()}


# Devices.


def _told(device: DeviceOfNode) -> dict[str, Any]:
    """As a receipt has it."""
    gpu = {"uuid": device.uuid, "memory": MEMORY, "source": "lease"} if device.uuid else {}
    return {"name": device.name, "granted": None, **gpu}


def _machines(devices: int, nodes: int) -> list[DeviceOfNode]:
    if not devices:
        return [DeviceOfNode("CPU", None, f"node{n + 1:02}") for n in range(nodes)]
    return [
        DeviceOfNode(GPU, f"GPU-{n:08x}-1111-2222-3333-{n:012x}", f"node{n % nodes + 1:02}")
        for n in range(devices)
    ]


# Shards.


class _Writer:
    """Lets the machines take shards in turn, and writes down what each would have left.

    Time is told from 0 on first; all of it is then moved so that the tasks at work began just
    before the moment that was asked for.
    """

    def __init__(
        self, made: Pretended, machines: list[DeviceOfNode], slow_device: bool, random: Random
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
            if row.shard in self._is["running"]:
                self._run(row, machine, held)
            elif row.shard in self._is["failed"]:
                self._fail(row, machine, started)
            else:
                self._finish(row, machine, started, held)

    def _jobs(self) -> Iterator[tuple[Shard, DeviceOfNode, float, dict[str, float]]]:
        """Who computes which shard from when on, and what `_held` says of it."""
        for row in self._plan.shards.values():
            if row.shard in self._is["waiting"]:
                return
            machine = min(self._free, key=self._free.__getitem__)
            held = self._held(row, machine)
            yield row, machine, self._free[machine], held
            self._free[machine] += sum(held.values()) + self._random.uniform(0.05, 0.4)

    def _work(self, row: Shard) -> dict[str, int]:
        problem, count = self._plan.problem, row.stop - row.start
        return {"read": row.bytes, "compute": count * problem.flop, "write": row.product_bytes}

    def _held(self, row: Shard, machine: DeviceOfNode) -> dict[str, float]:
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

    def _journal(self, shard: str, began: Sequence[float], machine: DeviceOfNode) -> None:
        lines = (f"{at:.3f}\t{machine.node}\t{1000 + n}\t\n" for n, at in enumerate(began))
        path = self._plan.results.starts(shard)
        path.parent.mkdir(parents=True, exist_ok=True)  # of many shards, one by the thousand
        path.write_text("".join(lines))

    def _finish(
        self, row: Shard, machine: DeviceOfNode, started: float, held: dict[str, float]
    ) -> None:
        # To a tenth of a millisecond, as the phases are: then these add up to the last digit.
        started = round(started, 4)
        finished = started + math.fsum(held.values())
        tries = 2 if self._random.random() < 0.03 else 1
        self._journal(row.shard, [started - 30.0 * n for n in range(tries)][::-1], machine)
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
        _write(results.receipt(row.shard), text, finished)
        _sparse(results.product(row.shard), receipt["file"], finished)
        written = [(finished, "INFO", f"{results.receipt(row.shard)} written")]
        _log(results, row.shard, started, written, machine)

    def _fail(self, row: Shard, machine: DeviceOfNode, started: float) -> None:
        results, ended = self._plan.results, started + 1.5
        self._journal(row.shard, [started], machine)
        if row.shard in self._is["lost"]:
            # The last sign of it is older than any task that lives can be.
            _log(results, row.shard, min(started, self._made.at - 120.0), [], machine)
            return
        words = f"device {machine.uuid or 'CPU'}: out of memory; nothing was written"
        _log(results, row.shard, started, [(ended, "ERROR", words)], machine)

    def _run(self, row: Shard, machine: DeviceOfNode, held: Mapping[str, float]) -> None:
        results, at = self._plan.results, self._made.at
        done = self._random.uniform(0.1, 0.9)
        started = at - max(1.0, done * sum(held.values()))
        self._journal(row.shard, [started], machine)
        _log(results, row.shard, started, [], machine)
        device = {key: _told(machine)[key] for key in ("name", "uuid") if key in _told(machine)}
        live = {
            "schema": 1, "shard": row.shard, "attempt": 1, "started": started, "at": at - 1.0,
            "node": machine.node, "process": 1000, "job": None, "device": device,
            "matrices": row.stop - row.start, "done": int((row.stop - row.start) * done),
        }  # fmt: skip
        _write(results.live / f"{row.shard}.json", json.dumps(live).encode(), at - 1.0)


def _receipt(
    plan: Plan, row: Shard, machine: DeviceOfNode, attempt: int, moments: tuple[float, float]
) -> dict[str, Any]:
    """A receipt as a task writes it, but for what later versions have added."""
    shape, dtype = _form(plan, row)
    natural = piecess.natural_row(shape, np.dtype(dtype).itemsize)
    pieces = piecess.checksum_pieces(natural, np.dtype(dtype).itemsize)
    header = padded_header(shape, np.dtype(dtype).newbyteorder("<"))
    facts = {
        "name": f"{row.shard}.npy", "shape": list(shape), "dtype": dtype,
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
        "shard": row.shard, "start": row.start, "stop": row.stop, "fingerprint": row.fingerprint,
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


def _log(
    results: Results, shard: str, began: float, lines: Sequence[tuple[float, str, str]],
    machine: DeviceOfNode,
) -> None:  # fmt: skip
    """A log as `cli.run` makes it."""
    told = [(began, "INFO", f"on {machine.node}, process 1000, in /pretended"), *lines]
    text = "".join(f"{_stamp(at)} {level} {words}\n" for at, level, words in told)
    _write(results.log("multiply", shard), text.encode(), told[-1][0])


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
    pieces = piecess.checksum_pieces(total.nbytes)
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
        "ledger": plans.file_digest(plan.results.ledger),
        "made_by": receipts.count_makers(found), "ranks": 2, "nodes": {found[0].node: 2},
        "scalars": {"count": int(total.size), "sum": float(total.sum()),
                    "mean": float(total.mean())},
        "files": {"sum": facts}, "quarantined": [],
        **_provenance("reduce", found[0].node, ended + 1.0, ended + 21.0,
                      {"mpi": "MPICH Version: 5.0.2"}),
    }  # fmt: skip
    _write(plan.results.summary, receipts._text(summary), ended + 21.0)
    for other in (plan.results.ledger, path):
        os.utime(other, (ended + 0.5, ended + 0.5) if other != path else (ended + 20, ended + 20))


def _total(shape: tuple[int, ...], random: Random) -> np.ndarray:
    """A sum with some structure, an outlier, and numbers that take many letters."""
    rows, columns = np.ogrid[: shape[0], : shape[1]]
    noise = np.random.default_rng(random.randrange(2**32)).standard_normal(shape)
    total = 4e6 * np.sin(rows / 9) * np.cos(columns / 13) + 1e5 * noise
    total[0, 0] = 5e9
    return total
