"""What a node can do at all: the raw rates beside which the stages of a shard are shown.

``logs/ceilings/NODE.json`` holds those of one node; `probes.py` measures them. Anybody may have
written there, so all of a file is looked at when it is read. Standard library only, but for what
measures and writes.
"""

import json
import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from shardwise import devices, smallfile
from shardwise.observation import Device
from shardwise.paths import Results
from shardwise.planfile import Plan
from shardwise.units import human_bytes, number

log = logging.getLogger(__name__)

SCHEMA = 1

RATES = "read", "write", "copy", "upload", "download"
"""What is measured in bytes a second; ``copy`` is from the page cache to memory."""

DUE_BYTES = 256 * 1024**3
"""Input from which on the first task on a node measures it: ten seconds are nothing beside that."""

_STALE_SECONDS = 3600.0
"""So long after a task has begun to measure a node and left no file, another one may try."""

_MOST_FILES, _MOST_BYTES, _MOST_LETTERS = 10_000, 64 * 1024, 200
_MOST_RATE = 1e19
"""A hundred times what all GPUs of a large cluster do together: whatever is more was made up."""


@dataclass(frozen=True)
class Ceilings:
    """The raw rates of a node.

    Attributes
    ----------
    node
        As :func:`shardwise.devices.node` names it.
    device
        Whose rates those of PCIe and of products are.
    measured
        Seconds of Unix time.
    rates
        Bytes a second by the names in :data:`RATES`; None for what could not be measured, and for
        PCIe on a CPU.
    compute
        Floating-point operations a second by what :func:`arithmetic` says.
    alone
        False where a task measured, beside which others may have been at work.
    remarks
        What to know of the figures, a sentence each.
    """

    node: str
    device: Device
    measured: float
    rates: Mapping[str, float | None]
    compute: Mapping[str, float]
    alone: bool = True
    remarks: tuple[str, ...] = ()

    def rate(self, stage: str, plan: Plan | None = None) -> float | None:
        """The ceiling of a stage of the pipeline; None where there is none.

        Parameters
        ----------
        stage
            One of :data:`shardwise.timeline.STAGES`.
        plan
            Whose arithmetic counts under ``compute``; a function of the user has no ceiling.
        """
        if stage != "compute":
            return self.rates.get(stage)
        if plan is None or plan.problem.result:
            return None
        precision = "ieee" if self.device.uuid is None else str(plan.settings.get("precision"))
        return self.compute.get(arithmetic(plan.dtype, precision))


def arithmetic(dtype: str, precision: str) -> str:
    """The name of what products of a dtype are computed in: the dtype, with tf32 where that is."""
    tf32 = precision == "tf32" and dtype in ("float32", "complex64")
    return f"{dtype} tf32" if tf32 else dtype


# Reading.


def read(results: Results) -> dict[str, Ceilings]:
    """The ceilings that were measured for a results folder, by node; wrong files are left out."""
    found = {}
    try:
        with os.scandir(results.ceilings) as entries:
            names = sorted(e.name for e in islice(entries, _MOST_FILES) if e.name.endswith(".json"))
    except OSError:
        return {}
    for name in names:
        # A link may lead to a file of anybody.
        known = _parsed(smallfile.said(results.ceilings / name, _MOST_BYTES, follow=False))
        if known is not None:
            found[known.node] = known
    return found


def _parsed(told: Any) -> Ceilings | None:
    """The ceilings that a JSON value stands for, if it does for any."""
    if not isinstance(told, dict) or told.get("schema") != SCHEMA:
        return None
    device, rates = told.get("device"), told.get("rates")
    if not isinstance(device, dict) or not isinstance(rates, dict):
        return None
    node, name, uuid = (_text(v) for v in (told.get("node"), device.get("name"),
                                           device.get("uuid")))  # fmt: skip
    measured, compute = _number(told.get("measured")), rates.get("compute")
    if not node or not name or measured is None:
        return None
    remarks = told.get("remarks")
    return Ceilings(
        node,
        Device(name, uuid, node),
        measured,
        {key: _number(rates.get(key)) for key in RATES},
        _numbers(compute) if isinstance(compute, dict) else {},
        told.get("alone") is not False,
        tuple(filter(None, map(_text, remarks[:20]))) if isinstance(remarks, list) else (),
    )


def _numbers(told: Mapping[str, Any]) -> dict[str, float]:
    found = {str(key)[:_MOST_LETTERS]: _number(value) for key, value in islice(told.items(), 50)}
    return {key: value for key, value in found.items() if value is not None}


def _number(value: Any) -> float | None:
    """A rate or a time, where a value is one that there can be."""
    found = number(value, _MOST_RATE)
    return float(found) if found is not None and found > 0 else None


def _text(value: Any) -> str | None:
    """A short printable text, where a value is one."""
    fits = isinstance(value, str) and 0 < len(value) <= _MOST_LETTERS and value.isprintable()
    return value if fits else None


# Measuring.


def write(results: Results, made: Ceilings) -> Path:
    """Keep the ceilings of a node; the file they stand in."""
    from shardwise.arrays import commit  # here: who only reads needs no NumPy

    path = results.ceiling(made.node)
    rates = {key: made.rates.get(key) for key in RATES}
    told = {
        "schema": SCHEMA,
        "node": made.node,
        "device": {"name": made.device.name, "uuid": made.device.uuid},
        "measured": made.measured,
        "alone": made.alone,
        "rates": {**rates, "compute": dict(made.compute)},
        "remarks": list(made.remarks),
    }
    with commit(path) as file:
        file.write(json.dumps(told, indent=1).encode() + b"\n")
    return path


def measure_if_due(plan: Plan, lane: Any, device: Mapping[str, Any]) -> None:
    """Measure this node before the first shard of a large run, unless that is done or under way.

    Whatever goes wrong is a warning: it must never cost a shard.

    Parameters
    ----------
    lane
        Of the session that is about to compute (lanes.py).
    device
        What its receipts will say of the device.
    """
    nbytes = plan.problem.matrices * plan.problem.matrix_bytes
    if nbytes < DUE_BYTES:
        return
    try:
        path = plan.results.ceiling(devices.node())
        marker = path.with_suffix(".measuring")
        if path.exists() or not _first(marker) or path.exists():
            return
        _measure(plan, lane, device, nbytes, marker)
    except Exception as error:
        log.warning("the raw rates of this node were not measured: %s", error)


def _measure(plan: Plan, lane: Any, device: Mapping[str, Any], nbytes: int, marker: Path) -> None:
    from shardwise import probes  # here: who only reads needs no NumPy

    log.info(
        "the first task on this node, and %s of input: measuring its raw rates, some 10 s "
        "(docs/ceilings.md)", human_bytes(nbytes),
    )  # fmt: skip
    try:
        write(plan.results, probes.measure(plan.results, lane, device, plan, alone=False))
    except BaseException as error:
        # After an error the marker stays: the next tasks would fail alike, ten seconds each.
        if not isinstance(error, Exception):
            marker.unlink(missing_ok=True)
        raise
    marker.unlink(missing_ok=True)
    log.info("written: %s", plan.results.ceiling(devices.node()))


def _first(marker: Path) -> bool:
    """Whether no other task measures this node, or has tried in the last hour."""
    marker.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        if time.time() - marker.lstat().st_mtime > _STALE_SECONDS:
            marker.unlink()
    try:
        os.close(os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    except FileExistsError:
        return False
    return True
