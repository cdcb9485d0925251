"""All shards of a plan on 1, 2, 4 … GPUs of this machine: throughput, speed-up, and what bounds it.

Each run is the command line, ``dispatch.py``, in a process of its own. Its rate counts from
the first shard's start to the last one's end, as the receipts say; what it takes before and after
stands in a column of its own. The stack is larger than what lies on the disk: some files of one
matrix each come in it again and again, by hard links.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import numpy as np
import transfers

GIB = 1024**3
RESERVE_SECONDS = 15
WAYS = ("pool", "mpi")
COLUMNS = ["stack", "way", "GPUs", "seconds", "and around", "GB/s", "TFLOP/s", "speed-up",
           "of the bound", "bound"]  # fmt: skip


# What a function of the user's may be: so many products per matrix that nothing else counts.
POWERS = """
def power(xp, block):
    result, scaled = block, block * xp.float32(block.shape[1] ** -0.5)  # or it would overflow
    for _ in range({products}):
        result = xp.matmul(result, scaled)
    return result
"""


@dataclass(frozen=True)
class Cell:
    """A stack of float32, ``keep: sum``: its matrices, where they lie, how large shards are.

    ``per_device`` is the number of shards for each device of the machine, ``products`` the number
    of products per matrix: 1 is ``A @ A``, more a power that a function computes.
    """

    dim: int
    where: str
    shard_gib: float
    per_device: int
    products: int = 1

    @property
    def label(self) -> str:
        """What the table calls it."""
        what = f"power {self.products + 1} " if self.products > 1 else ""
        return f"float32 d={self.dim} {what}sum {self.where}"

    @property
    def flop(self) -> int:
        """Operations a matrix."""
        return 2 * self.dim**3 * self.products

    @property
    def matrix_bytes(self) -> int:
        """Bytes of a matrix."""
        return 4 * self.dim**2

    def matrices(self, devices: int) -> int:
        """Matrices of the whole stack."""
        return self.per_device * devices * max(1, int(self.shard_gib * GIB) // self.matrix_bytes)


def cells(tiny: bool, scale: float) -> list[Cell]:
    """What is measured; those on the same files follow each other."""
    if tiny:
        return [Cell(512, "cached", 2**-9, 3, 2), Cell(512, "cold", 2**-9, 2)]
    # A sum is written to disk by each shard: shards are as large as they usually are.
    return [
        Cell(1024, "cached", 4 * scale, 12, products=64),
        Cell(4096, "cached", 16 * scale, 8),
        Cell(4096, "cold", 4 * scale, 4),
    ]


@dataclass
class Bench:
    """Files, and the machine's limits."""

    folder: Path
    xp: Any
    gib: float
    memory: np.ndarray
    own: tuple[tuple[str, Any], ...] = ()  # keys of the config, with their values

    def base(self, cell: Cell) -> list[Path]:
        """The files of one matrix each; those of other sizes go, as disks are small."""
        folder = self.folder / f"base-{cell.dim}"
        if not folder.exists():
            for old in self.folder.glob("base-*"):
                shutil.rmtree(old)
            folder.mkdir()
            for i in range(max(2, int(self.gib * GIB) // cell.matrix_bytes)):
                drawn = np.concatenate(list(harness.pieces("float32", cell.dim**2, seed=i)))
                np.save(folder / f"{i:04}.npy", drawn.reshape(cell.dim, cell.dim))
        return sorted(folder.glob("*.npy"))

    def plan(self, cell: Cell, devices: int) -> Path:
        """A plan of the whole stack; the path of its ``plan.tsv``."""
        base, stack = self.base(cell), Path(tempfile.mkdtemp(dir=self.folder, prefix="stack-"))
        for i in range(cell.matrices(devices)):
            os.link(base[i % len(base)], stack / f"{i:06}.npy")
        over = {"keep": "sum", "shards": cell.per_device * devices, **dict(self.own)}
        if cell.products > 1:
            own = stack.with_suffix(".py")
            own.write_text(POWERS.format(products=cell.products))
            over["product"] = f"{own}:power"
        backend = "numpy" if self.xp is np else "cupy"
        return harness.write_plan(stack / "results", stack, backend=backend, **over)

    def place(self, cell: Cell) -> None:
        """Bring the files into the page cache, or out of it."""
        for path in self.base(cell):
            if cell.where == "cold":
                transfers.evict(path)
            else:
                transfers.warm(path, self.memory)

    def limits(self, cell: Cell, plan: Path) -> dict[str, tuple[float, bool]]:
        """Bytes per second that each part allows, by its name, and whether each device has its own.

        All are bytes of the input. Files are read by as many threads as the machine has cores.
        """
        from shardwise.plan import memory as plan_memory
        from shardwise.plan import plan as plans

        base, size = self.base(cell), len(self.base(cell)) * cell.matrix_bytes
        self.place(cell)
        threads = max(transfers.THREADS, os.cpu_count() or 1)
        seconds = transfers.read_files(base, self.memory, cell.where == "cold", threads)
        name = "disk" if cell.where == "cold" else "page cache"
        found = {name: (size / seconds, False)}
        flops = transfers.gemm(self.xp, "float32", cell.dim)
        found["GEMM"] = (flops * cell.matrix_bytes / cell.flop, True)
        if self.xp is not np:
            found["PCIe"] = (transfers.pcie(self.xp, True, False), True)
        made = plans.load(plan)
        sums = [
            plan_memory.result_bytes(made.problem, shard.run, "sum")
            for shard in made.shards.values()
        ]
        written = self.folder / "written"
        rate = sums[0] / transfers.write(written, sums[0], self.memory)
        written.unlink()
        nbytes = sum(shard.bytes for shard in made.shards.values())
        found["sums to the disk"] = (nbytes * rate / sum(sums), False)
        return found


def run(plan: Path, way: str, devices: list[str]) -> tuple[float, float]:
    """Compute a plan anew; seconds from the first shard's start to the last's end, and in all.

    Raises
    ------
    RuntimeError
        Where it fails.
    """
    for folder in ("products", "logs"):
        shutil.rmtree(plan.parent / folder, ignore_errors=True)
    line = [sys.executable, str(harness.REPO / "scripts" / "dispatch.py"), "--plan", str(plan)]
    line += ["--dispatch", way]
    line += ["--ranks", str(max(1, len(devices)))] if way == "mpi" else []
    own = os.environ | ({"CUDA_VISIBLE_DEVICES": ",".join(devices)} if devices else {})
    whole, _ = harness.command(line, env=own)
    receipts = [harness.read_json(path) for path in (plan.parent / "products").glob("*.json")]
    used = {receipt["device"].get("uuid") for receipt in receipts}
    if len(used) < len(devices):
        raise RuntimeError(f"only {len(used)} of {len(devices)} devices were used")
    times = [receipt[key] for receipt in receipts for key in ("started", "finished")]
    return max(times) - min(times), whole


def rows(
    bench: Bench, cell: Cell, ways: list[str], uuids: list[str], budget: harness.Budget,
    table: harness.Table,
) -> Iterator[tuple[list[object], dict[str, Any]]]:  # fmt: skip
    """The rows of a stack: each way on 1, 2, 4 … devices."""
    plan = bench.plan(cell, max(1, len(uuids)))
    limits = bench.limits(cell, plan)
    nbytes = cell.matrices(max(1, len(uuids))) * cell.matrix_bytes
    alone: dict[str, float] = {}
    for count in [n for n in (1, 2, 4, 8) if n <= max(1, len(uuids))]:
        name, bound = min(
            ((name, rate * (count if each else 1)) for name, (rate, each) in limits.items()),
            key=lambda item: item[1],
        )
        for way in ways:
            if budget.left < RESERVE_SECONDS:
                table.note(f"{cell.label}, {way} on {count}: skipped, out of time")
                continue
            bench.place(cell)
            try:
                seconds, whole = run(plan, way, uuids[:count])
            except RuntimeError as error:
                table.note(f"{cell.label}, {way} on {count}: {harness.reason(error)}")
                continue
            rate = nbytes / seconds
            alone.setdefault(way, rate if count == 1 else 0.0)
            up = harness.ratio(rate, alone[way])
            flops = rate / cell.matrix_bytes * cell.flop
            figures = {"seconds": seconds, "whole": whole, "rate": rate, "limits": limits}
            yield (
                [cell.label, way, count, seconds, whole - seconds, rate / harness.GB, flops / 1e12,
                 up, rate / bound, name],
                figures,
            )  # fmt: skip
    shutil.rmtree(plan.parents[1])


def arguments() -> argparse.ArgumentParser:
    """The options."""
    made = harness.parser(__doc__)
    made.set_defaults(minutes=4.0)
    harness.add_folder(made)
    made.add_argument("--gib", type=float, default=8.0, help="GiB of files on the disk")
    made.add_argument("--scale", type=float, default=1.0, help="times the usual size of a shard")
    made.add_argument("--ways", default="pool", help=f"of {', '.join(WAYS)}, with commas between")
    return made


def main() -> None:
    """Measure in a folder that is removed afterwards."""
    options = arguments().parse_args()
    from shardwise.devices import choose

    uuids = [] if options.tiny else [device.uuid for device in choose.candidates()]
    xp = harness.array_module(options.tiny)
    budget = harness.Budget(options.minutes)
    harness.say(f"{max(1, len(uuids))} × {harness.device_name(xp)}, {harness.machine()}")
    table = harness.Table("scaling", COLUMNS, options.json)
    with harness.working_folder(options) as folder:
        gib = 2**-10 if options.tiny else options.gib
        bench = Bench(folder, xp, gib, transfers.ring(xp, options.tiny))
        for cell in cells(options.tiny, options.scale):
            if budget.left < RESERVE_SECONDS and not options.tiny:
                table.note(f"{cell.label}: skipped, out of time")
                continue
            ways = options.ways.split(",")
            for row, figures in rows(bench, cell, ways, uuids, budget, table):
                table.row(row, figures)
    table.note("and around: seconds before the first shard begins and after the last one ends")
    table.note("bound: the lowest of the rates measured alone; GEMM and PCIe count once per GPU")
    table.end()


if __name__ == "__main__":
    main()
