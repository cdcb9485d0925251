"""Whole shard jobs, from the input's file to a committed result, beside other ways to do them.

In each round all peers take turns on the same file, cold or in the page cache, each in a process of
its own that has its imports, its device and one small job behind it. The ceiling is taken in the
same round. Seconds are medians over the rounds; ratios are medians of the ratios within a round.
"""

import argparse
import math
import os
import re
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import harness
import numpy as np
import transfers
from peers import PEERS, Job, Worker

GIB = 1024**3
LARGE = 1024  # from here on the rate of one product after the other is a ceiling
OURS, UNPROVEN, PLAIN, RAW = "shardwise", "shardwise, verify: false", "plain CuPy loop", "raw"
WARM_BYTES = 256 * harness.MIB  # of the small job that each peer does first
TOLERANCE = {"float64": 1e-9, "float32": 1e-3, "float16": 2e-2}  # of a row's norm


@dataclass(frozen=True)
class Cell:
    """One row: a stack, what is kept, and where the stack lies."""

    dtype: str
    dim: int
    keep: str
    where: str
    gib: float
    product: str = "A @ A"

    @property
    def label(self) -> str:
        """What the table calls it."""
        product = "" if self.product == "A @ A" else f" {self.product}"
        return f"{self.dtype} d={self.dim}{product} {self.keep} {self.where}"

    @property
    def matrices(self) -> int:
        """Matrices of the stack; at least two."""
        return max(2, int(self.gib * GIB) // (self.dim**2 * np.dtype(self.dtype).itemsize))


def cells(scale: float, tiny: bool) -> list[Cell]:
    """All rows; those on the same file follow each other, the most telling come first."""
    large, small = (16, 4) if tiny else (4096, 128)
    unit = 2**-14 if tiny else scale
    found = []
    for dtype in ("float32", "float16"):
        # A sum has a file of its own to write, so its shard is as large as shards are: 16 GiB.
        found.append(Cell(dtype, large, "sum", "cold", 16 * unit))
        found += [Cell(dtype, large, "products", where, 4 * unit) for where in ("cold", "cached")]
        found.append(Cell(dtype, large, "sum", "cached", 32 * unit))
    for dtype, dim, gib in (("float32", small, 8), ("float16", small, 8), ("float64", large, 16)):
        found.append(Cell(dtype, dim, "sum", "cold", gib * unit))
        found.append(Cell(dtype, dim, "products", "cold", 4 * unit))
    return found


def numpy_cells(scale: float) -> list[Cell]:
    """The rows of ``--numpy``: 1 GiB of float32 in the page cache, of three sizes."""
    both = "A.T @ A", "A @ A"
    return [Cell("float32", d, "sum", "cached", scale, p) for d in (64, 512, 2048) for p in both]


def stack_path(folder: Path, cell: Cell, matrices: int | None = None) -> Path:
    """Where the input of a cell lies, or a smaller one."""
    return folder / f"{cell.dtype}-{cell.dim}-{matrices or cell.matrices}.npy"


@dataclass
class Bench:
    """The workers, and what goes around a job.

    Attributes
    ----------
    broken
        Why a peer has no result, by its name; of the present cell.
    """

    folder: Path
    options: argparse.Namespace
    workers: dict[str, Worker]
    memory: np.ndarray
    broken: dict[str, str] = field(default_factory=dict)

    def names(self) -> list[str]:
        """Peers in the order of the columns."""
        both = [UNPROVEN] if self.options.verify == "both" else []
        return [*self.options.peers, *both]

    def stack(self, cell: Cell, matrices: int | None = None) -> Path:
        """A ``.npy`` file as NumPy writes it, of normal numbers; no two matrices are equal."""
        path = stack_path(self.folder, cell, matrices)
        if path.exists():
            return path
        begun = path.with_suffix(".part")
        shape = (matrices or cell.matrices, cell.dim, cell.dim)
        fields = {"descr": np.dtype(cell.dtype).str, "fortran_order": False, "shape": shape}
        with open(begun, "wb") as file:
            np.lib.format.write_array_header_1_0(file, fields)
            for piece in harness.pieces(cell.dtype, math.prod(shape)):
                file.write(piece.data)
            file.flush()
            os.fsync(file.fileno())
        return begun.rename(path)

    def forget(self, later: list[Cell]) -> None:
        """Remove the files that no later row needs."""
        keep = {stack_path(self.folder, cell) for cell in later}
        for path in {*self.folder.glob("*.npy"), *self.folder.glob("*.part")} - keep:
            path.unlink()

    def job(self, name: str, cell: Cell, matrices: int) -> tuple[Worker, Job]:
        """Who does it, and what; the folder of the result is made."""
        folder = self.folder / "job"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        over = dict(self.options.set) | {"verify": name != UNPROVEN}
        worker = self.workers[OURS if name == UNPROVEN else name]
        return worker, Job(
            str(self.stack(cell, matrices)), str(folder), cell.dtype, cell.dim, matrices,
            cell.keep, cell.where == "cached", cell.product, over,
        )  # fmt: skip

    def measure(self, name: str, cell: Cell) -> dict[str, Any] | None:
        """One job of one peer; None where it failed, which is noted."""
        if name in self.broken:
            return None
        try:
            if "error" in (answer := self._warm_up(name, cell)):
                self.broken[name] = answer["error"]
                return None
            worker, job = self.job(name, cell, cell.matrices)
            if job.cached:
                transfers.warm(Path(job.stack), self.memory)
            else:
                transfers.evict(Path(job.stack))
            os.sync()
            answer = worker.ask(job)
            if "error" not in answer and name != RAW:
                answer["row"] = result_row(job, Path(answer["output"]))
        except Exception as error:
            answer = {"error": harness.reason(error)}
        if "error" in answer:
            self.broken[name] = answer["error"]
            return None
        return answer

    def _warm_up(self, name: str, cell: Cell) -> dict[str, Any]:
        """A small job of the same kind: libraries, kernels and pinned memory are there after it."""
        worker = self.workers[OURS if name == UNPROVEN else name]
        key = (name, cell.dtype, cell.dim, cell.keep, cell.product)
        if key in worker.warmed or name == RAW:
            return {}
        few = min(
            cell.matrices, max(2, WARM_BYTES // (cell.dim**2 * np.dtype(cell.dtype).itemsize))
        )
        answer = worker.ask(self.job(name, cell, few)[1])
        if "error" not in answer:
            worker.warmed.add(key)
        return answer


def result_row(job: Job, path: Path) -> np.ndarray | None:
    """First row of the last product, or of the sum; None where the file holds something else."""
    result = np.load(path, mmap_mode="r")
    if job.keep == "sum" and result.ndim == 3:  # the nodes of a sum
        return result[:, 0].sum(axis=0)
    whole = (job.dim, job.dim) if job.keep == "sum" else (job.matrices, job.dim, job.dim)
    if result.shape != whole:
        return None
    return np.array(result[0] if job.keep == "sum" else result[-1, 0], "float64")


def true_row(stack: Path) -> np.ndarray:
    """First row of the last product, in float64."""
    last = np.load(stack, mmap_mode="r")[-1].astype("float64")
    return last[0] @ last


def check_rows(bench: Bench, cell: Cell, found: dict[str, dict[str, Any]]) -> None:
    """Results that differ count as failed: products from the truth, sums from the plain loop's."""
    if cell.keep == "products":
        truth = true_row(bench.stack(cell))
    else:
        truth = found.get(PLAIN, {}).get("row")
    for name in [n for n, answer in found.items() if n != RAW]:
        row = found[name].pop("row")
        if row is None or truth is None:
            continue
        error = np.linalg.norm(row - truth) / np.linalg.norm(truth)
        if not error < TOLERANCE[cell.dtype]:
            bench.broken[name] = f"wrong result, by {error:.1e} of a row's norm"
            del found[name]


def rounds(bench: Bench, cell: Cell, reserve: float, budget: harness.Budget) -> list[Any]:
    """Answers by peer, a dictionary a round; more rounds while they leave the reserve alone."""
    done: list[dict[str, dict[str, Any]]] = []
    names = bench.names()
    while len(done) < bench.options.rounds:
        begin, found = time.monotonic(), {}
        for name in harness.in_turn(names, len(done)):
            answer = bench.measure(name, cell)
            if answer is not None:
                found[name] = answer
        check_rows(bench, cell, found)
        done.append(found)
        if budget.left - (time.monotonic() - begin) < reserve:
            break
    return [{n: a for n, a in found.items() if n not in bench.broken} for found in done]


def limits(cell: Cell, device: dict[str, float], rate: float | None) -> dict[str, float]:
    """Bytes of input per second that each part of the machine allows, by its name."""
    found = {} if rate is None else {"page cache" if cell.where == "cached" else "disk": rate}
    if cell.where == "cached" and cell.keep == "products" and rate is not None:
        found = {"page cache and disk": rate}
    lane = "PCIe" if cell.keep == "sum" else "PCIe both ways"
    if lane in device:
        found["PCIe"] = device[lane]
    if f"GEMM {cell.dtype}" in device and cell.dim >= LARGE:
        item = np.dtype(cell.dtype).itemsize
        found["GEMM"] = device[f"GEMM {cell.dtype}"] * item / (2 * cell.dim)
    return found


def add_row(
    table: harness.Table, bench: Bench, cell: Cell, done: list[Any], device: dict[str, float]
) -> None:
    """One row of the table, with its remarks."""
    nbytes = cell.matrices * cell.dim**2 * np.dtype(cell.dtype).itemsize
    rates: dict[str, list[float | None]] = {
        name: [nbytes / found[name]["seconds"] if name in found else None for found in done]
        for name in bench.names()
    }
    lows = [limits(cell, device, rate) for rate in rates.get(RAW, [None] * len(done))]
    lowest = [min(low.values(), default=None) for low in lows]
    narrow = min(lows[0], key=lows[0].get) if lows[0] else None
    ours = rates.get(OURS, [None] * len(done))

    def against(others: list[float | None]) -> float | None:
        return harness.median(harness.ratio(a, b) for a, b in zip(ours, others, strict=True))

    columns: list[object] = []
    for name, values in rates.items():
        middle = harness.median(values)
        failed = "failed" if name in bench.broken else None
        columns.append(middle / harness.GB if middle else failed)
    to_ceiling, to_plain = against(lowest), against(rates.get(PLAIN, [None] * len(done)))
    price = against(rates[UNPROVEN]) if UNPROVEN in rates else None
    columns += [narrow, to_ceiling, to_plain]
    if UNPROVEN in rates:
        columns.append(100 * (1 / price - 1) if price else None)
    seconds = {n: [f[n]["seconds"] if n in f else None for f in done] for n in bench.names()}
    figures = {**vars(cell), "bytes": nbytes, "seconds": seconds, "limits": lows,
               "broken": dict(bench.broken), "rounds": len(done)}  # fmt: skip
    table.row([cell.label, f"{nbytes / harness.GB:.2f}", len(done), *columns], figures)
    for name, why in bench.broken.items():
        table.note(f"{name}: {why}")
    for name in bench.names() if bench.options.numpy else []:
        cpu = harness.median(found[name]["cpu"] for found in done if name in found)
        table.note(f"{cell.label}, {name}: {harness.number(cpu)} s of the processors")


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = harness.parser(__doc__)
    harness.add_folder(parser)
    parser.add_argument("--numpy", action="store_true", help="on the CPU, rows of its own")
    parser.add_argument("--rounds", type=int, default=3, help="at most, while time is left")
    parser.add_argument("--scale", type=float, default=1.0, help="of the files' sizes")
    parser.add_argument("--only", default="", help="regular expression that a row's label matches")
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=list(PEERS))
    parser.add_argument(
        "--set", nargs="+", type=harness.setting, default=[], help="KEY=VALUE for ours"
    )
    parser.add_argument(
        "--verify", choices=["true", "both"], default="true", help="both: what the proof costs"
    )
    return parser


def run(options: argparse.Namespace, folder: Path) -> None:
    """Measure row by row."""
    budget = harness.Budget(options.minutes)
    workers = {name: Worker(name, options.tiny or options.numpy) for name in PEERS}
    memory = transfers.pinned(np, transfers.RING * transfers.BLOCK)
    bench = Bench(folder, options, workers, memory)
    rows = cells(options.scale, options.tiny)
    rows = numpy_cells(options.scale) if options.numpy else rows
    wanted = [c for c in rows if re.search(options.only, c.label)]
    harness.say(
        f"Shard jobs, {harness.machine()}, {transfers.file_system(folder)}; GB of input per second"
    )
    headings = ["job", "GB", "rounds", *bench.names()]
    headings += ["bottleneck", "to the ceiling", "to the plain"]
    if UNPROVEN in bench.names():
        headings.append("proof costs %")
    table = harness.Table("shard_jobs", headings, options.json)
    device = device_limits(table, workers, wanted)
    turns: list[float] = []  # seconds of a round, by row
    for index, cell in enumerate(wanted):
        if budget.left <= max(turns, default=0.0):
            table.note(f"{cell.label}: skipped, out of time")
            continue
        begin, bench.broken = time.monotonic(), {}
        try:
            bench.stack(cell)
            reserve = (harness.median(turns) or 0.0) * (len(wanted) - index - 1)
            done = rounds(bench, cell, reserve, budget)
            add_row(table, bench, cell, done, device)
            turns.append((time.monotonic() - begin) / len(done))
        except Exception as error:  # the disk is full, say: the next row may be smaller
            table.note(f"{cell.label}: {harness.reason(error)}")
        bench.forget(wanted[index + 1 :])
    for worker in workers.values():
        worker.stop()
    table.end()


def device_limits(
    table: harness.Table, workers: dict[str, Worker], wanted: list[Cell]
) -> dict[str, float]:
    """PCIe and matrix products of this device, measured once."""
    dims = {c.dtype: c.dim for c in wanted if c.dim >= LARGE}
    if not dims:
        return {}
    found = workers[RAW].ask(dims)
    if "error" in found:
        table.note(f"PCIe and GEMM: {found['error']}")
        return {}
    for name, rate in found.items():
        unit = f"{rate / 1e12:.0f} TFLOP/s" if "GEMM" in name else f"{rate / harness.GB:.1f} GB/s"
        table.note(f"{name}: {unit}")
    return found


def main() -> None:
    """Measure in a folder that is removed afterwards."""
    options = arguments().parse_args()
    harness.need_gpu(options.tiny or options.numpy)
    if options.tiny:
        options.rounds = 1
    with harness.working_folder(options) as folder:
        run(options, folder)


if __name__ == "__main__":
    main()
