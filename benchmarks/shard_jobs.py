"""Whole shard jobs on one GPU or several, beside scripts for the same and bare reads (peers.py).

Every peer has a process per GPU, whose start, memory and kernels do not count. A window runs from
the word to begin to the last result; ours are committed with receipts. All take turns on the same
files, cold or in the page cache. Figures are GB of input per second, medians over the rounds.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import numpy as np
import peers

GIB = 1024**3
TOLERANCE = {"float64": 1e-9, "float32": 1e-3, "float16": 2e-2}  # of a row's norm
SCRIPT = "script, {} readers"
READERS = (4, 8, 16)
ROUND_SECONDS = 20.0  # of a round that is begun


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes
    ----------
    gib
        GiB on the disk; of large matrices each is a file, which has several names.
    """

    dtype: str
    dim: int
    keep: str = "sum"
    where: str = "cached"
    product: str = "A @ A"
    gib: float = 4.0

    @property
    def label(self) -> str:
        """What the table calls it."""
        product = "" if self.product == "A @ A" else f" {self.product}"
        return f"{self.dtype} d={self.dim}{product} {self.keep} {self.where}"

    @property
    def matrix_bytes(self) -> int:
        """Bytes of one matrix."""
        return self.dim**2 * np.dtype(self.dtype).itemsize

    @property
    def matrices(self) -> int:
        """Matrices on the disk."""
        return max(4, int(self.gib * GIB) // self.matrix_bytes)


def rows(options: argparse.Namespace) -> list[Row]:
    """All rows; those on the same files follow each other."""
    gib = 2**-14 if options.tiny else options.gib
    if options.numpy or options.tiny:
        dims = (16,) if options.tiny else (64, 512, 2048)
        both = ("A @ A",) if options.tiny else ("A.T @ A", "A @ A")
        return [Row("float32", d, product=p, gib=gib) for d in dims for p in both]
    found = [Row(t, 4096, gib=gib) for t in ("float32", "float16")]
    found += [Row("float32", d, gib=gib) for d in (256, 1024, 32)]
    found += [Row("float16", 256, gib=gib)]
    slow = ("products", "cached"), ("sum", "cold"), ("products", "cold")
    return [*found, *(Row("float32", 4096, *both, gib=gib) for both in slow)]


def columns(row: Row, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The peers of a row, by what the table calls them; what their tasks have of their own."""
    found: dict[str, dict[str, Any]] = {"shardwise": {"peer": "shardwise"}}
    found["verify: false"] = {"peer": "shardwise", "over": {"verify": False}}
    if not options.numpy and not options.tiny:
        if row.dtype == "float32" and row.dim == peers.LARGE * 4:
            found["tf32x3"] = {"peer": "shardwise", "over": {"precision": "tf32x3"}}
        for readers in READERS:
            found[SCRIPT.format(readers)] = {"peer": "script", "readers": readers}
        found["raw"] = {"peer": "raw", "over": {"cold": row.where == "cold"}}
    found["plain loop"] = {"peer": "plain loop"}
    return {name: own for name, own in found.items() if re.search(options.peers, name)}


HEADINGS = ["shardwise", "verify: false", "tf32x3", *map(SCRIPT.format, READERS), "plain loop",
            "raw"]  # fmt: skip


def source(folder: Path, row: Row, total: float) -> Path:
    """A stack; or, of large matrices, a folder that has ``total`` GiB of names for them."""
    single = row.dim < peers.LARGE * 4
    shape = (row.matrices, row.dim, row.dim) if single else (row.dim, row.dim)
    names = [
        folder / ("stack.npy" if single else f"m{i}") for i in range(1 if single else row.matrices)
    ]
    for number, name in enumerate(names if not names[0].exists() else []):
        with open(name, "wb") as file:
            fields = {"descr": np.dtype(row.dtype).str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, fields)
            for piece in harness.pieces(row.dtype, int(np.prod(shape)), number):
                file.write(piece.data)
    os.sync()
    if single:
        return names[0]
    path = folder / f"{total} GiB"
    if not path.exists():
        path.mkdir()
        for i in range(max(len(names), int(total * GIB) // row.matrix_bytes)):
            (path / f"{i:06}.npy").symlink_to(names[i % len(names)])
    return path


class Group:
    """The processes of one peer, one per GPU."""

    def __init__(self, row: Row, where: Path, folder: Path, gpus: list[str], own: Any) -> None:
        single = where.is_file()
        self.processes = []
        for part, gpu in enumerate(gpus):
            mine = folder / str(part)
            mine.mkdir(parents=True)
            task = peers.Task(
                **{"source": str(where), "folder": str(mine), "dtype": row.dtype, "dim": row.dim,
                   "keep": row.keep, "product": row.product, "part": part, "parts": len(gpus),
                   "backend": "cupy" if gpu else "numpy", "shards": 4 if single else 2, **own},
            )  # fmt: skip
            env = os.environ | {
                "CUDA_VISIBLE_DEVICES": gpu,
                "SHARDWISE_LEASES": str(mine / "leases"),
            }
            line = [sys.executable, peers.__file__, json.dumps(vars(task))]
            self.processes.append(subprocess.Popen(
                line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env=env if gpu else os.environ,
            ))  # fmt: skip

    def ready(self) -> None:
        """Wait for all; RuntimeError where one has failed."""
        for process in self.processes:
            if self._line(process) != "ready\n":
                raise RuntimeError("did not get ready: see above")

    def turn(self) -> tuple[float, float, Any]:
        """GB per second of a turn, processor seconds per GB, and the row of its sum, or None."""
        began = time.perf_counter()
        for process in self.processes:
            process.stdin.write("\n")
            process.stdin.flush()
        answers = [json.loads(self._line(process)) for process in self.processes]
        seconds = time.perf_counter() - began
        sizes, cpu, rows = zip(*answers, strict=True)
        size = sum(sizes) / harness.GB
        return size / seconds, sum(cpu) / size, None if None in rows else np.sum(rows, axis=0)

    def _line(self, process: Any) -> str:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"ended with {process.wait()}: see above")
        return line

    def end(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.kill()
            process.wait()


def measure(
    table: harness.Table, row: Row, where: Path, folder: Path, gpus: list[str],
    options: argparse.Namespace, budget: harness.Budget,
) -> None:  # fmt: skip
    """One row: all peers get ready one by one, then take turns."""
    once = row.matrices * row.matrix_bytes
    if where.is_dir():
        once = len(list(where.glob("*.npy"))) * row.matrix_bytes
    cached_sum = row.keep == "sum" and row.where == "cached" and not options.numpy
    window = options.window_gib * len(gpus) * GIB if cached_sum and not options.tiny else 0
    passes = max(1, round(window / once))
    groups: dict[str, Group] = {}
    rates: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = defaultdict(list)
    try:
        for name, own in columns(row, options).items():
            groups[name] = Group(row, where, folder / f"job {name}", gpus, own | {"passes": passes})
        for name in list(groups):
            try:
                groups[name].ready()
                rates[name] = []
            except RuntimeError as error:
                table.note(f"{row.label}, {name}: {error}")
                groups.pop(name).end()
        for number in range(options.rounds):
            if budget.left < ROUND_SECONDS and not options.tiny:
                table.note(f"{row.label}: {number} rounds, out of time")
                break
            expected = None
            for name in harness.in_turn(groups, number):
                if row.where == "cold":
                    harness.drop([where] if where.is_file() else list(where.glob("*.npy")))
                os.sync()
                rate, seconds, found = groups[name].turn()
                rates[name].append(rate)
                cpu[name].append(seconds)
                expected = found if expected is None else expected
                if found is not None and differ(found, expected) > TOLERANCE[row.dtype]:
                    table.note(f"{row.label}, {name}: wrong by {differ(found, expected):.1e}")
    finally:
        for group in groups.values():
            group.end()
        shutil.rmtree(folder, ignore_errors=True)
    for name, seconds in cpu.items() if options.numpy else ():
        table.note(f"{row.label}, {name}: {statistics.median(seconds):.2f} s of processors per GB")
    middle = {name: statistics.median(found) for name, found in rates.items() if found}
    scripts = [rate for name, rate in middle.items() if name.startswith("script")]
    best, ours = max(scripts, default=middle.get("plain loop")), middle.get("shardwise")
    cells = [row.label, len(gpus), once * passes / harness.GB, *map(middle.get, HEADINGS)]
    table.row([*cells, harness.ratio(ours, best), harness.ratio(ours, middle.get("raw"))])


def differ(found: Any, expected: Any) -> float:
    """How far one sum is from another, relative to its norm."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def main() -> None:
    """Measure row by row in a folder that is removed afterwards."""
    parser = harness.parser(__doc__)
    harness.add_folder(parser)
    parser.add_argument("--numpy", action="store_true", help="on the CPU, rows of its own")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2], help="numbers of GPUs")
    parser.add_argument("--gib", type=float, default=4.0, help="GiB of a row on the disk")
    parser.add_argument("--window-gib", type=float, default=32.0, help="read per GPU and turn")
    parser.add_argument("--only", default="", help="regular expression that a row's label matches")
    parser.add_argument("--peers", default="", help="the same for the names of the columns")
    options = parser.parse_args()
    cpu = options.numpy or options.tiny
    gpus = [""] if cpu else harness.devices()
    counts = [n for n in ([1] if cpu else options.gpus) if n <= len(gpus)]
    budget = harness.Budget(options.minutes)
    headings = ["job", "GPUs", "GB", *HEADINGS, "to the best script", "to raw"]
    with harness.working_folder(options) as folder:
        harness.say(f"Shard jobs, {harness.machine()}, {harness.file_system(folder)}")
        table = harness.Table(headings)
        last = None
        for row in [r for r in rows(options) if re.search(options.only, r.label)]:
            if budget.left < 2 * ROUND_SECONDS and not options.tiny:
                table.note(f"{row.label}: skipped, out of time")
                continue
            if last and (last.dtype, last.dim) != (row.dtype, row.dim):
                shutil.rmtree(folder)
                folder.mkdir()
            last = row
            total = options.window_gib * max(counts) if row.keep == "sum" else row.gib
            where = source(folder, row, total if row.where == "cached" else row.gib)
            for count in counts:
                measure(table, row, where, folder / "jobs", gpus[:count], options, budget)
        table.end()


if __name__ == "__main__":
    main()
