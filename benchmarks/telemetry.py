"""What telemetry, timelines and live files cost a shard, and whether nvidia-smi agrees with them.

Prints the tables of docs/telemetry.md. On a GPU: ``python3 benchmarks/telemetry.py --folder
/local/disk``. Without one, ``--numpy`` measures the cost alone.
"""

import argparse
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import harness
import numpy as np
import transfers

CELLS = {  # matrices, size, products in a row of each, share of the time
    "tiny shard, d = 8": (256, 8, 1, 0.1),
    "small matrices, d = 8": (200_000, 8, 1, 0.1),
    "d = 512": (200, 512, 1, 0.1),
    "d = 4096": (64, 4096, 1, 0.2),
    "d = 4096, products for seconds": (16, 4096, 40, 0.5),
}
ON_NUMPY = ("tiny shard, d = 8", "small matrices, d = 8", "d = 512")
TINY = {"tiny shard, d = 8": (16, 8, 1, 1.0)}
TURNS = 3  # shards in a row of one kind, where they are short

SMI = {  # quantity of the receipt: query, what one unit of it is
    "utilisation": ("utilization.gpu", 0.01),
    "memory_bytes": ("memory.used", harness.MIB),
    "power_watts": ("power.draw", 1.0),
    "temperature_celsius": ("temperature.gpu", 1.0),
    "clock_sm_hertz": ("clocks.sm", 1e6),
    "clock_memory_hertz": ("clocks.mem", 1e6),
}
SMI_MS = 250

LONG = """
def work(xp, block):
    out = block @ block
    for _ in range({times} if xp.__name__ == "cupy" else 0):  # the plan tries it on NumPy
        out = xp.matmul(block, block, out=out)
    return out
"""


@contextmanager
def silence() -> Iterator[None]:
    """Let shards be computed without timeline, telemetry and live file."""
    from shardwise.multiply import live
    from shardwise.records import timeline

    class Nothing:
        def __init__(self, *arguments: Any) -> None:
            """Take what `live.AtWork` takes."""

        def __enter__(self) -> "Nothing":
            return self

        def __exit__(self, *error: object) -> None:
            """Leave nothing."""

        def release(self) -> None:
            """Sample nothing."""

        def telemetry(self) -> None:
            """Tell nothing."""

    own = timeline.StageTimeline
    before = live.AtWork, own.note, own.to_json
    live.AtWork, own.note, own.to_json = Nothing, lambda *a: None, lambda *a: {}
    try:
        yield
    finally:
        live.AtWork, own.note, own.to_json = before


def planned(folder: Path, count: int, dim: int, numpy: bool, times: int = 1) -> Any:
    """A plan of one shard of normal numbers, each multiplied so many times."""
    from shardwise.plan import plan as plans

    folder.mkdir(parents=True, exist_ok=True)
    stack = np.concatenate(list(harness.pieces("float32", count * dim * dim)))
    np.save(folder / "input.npy", stack.reshape(count, dim, dim))
    backend = "numpy" if numpy else "cupy"
    own = {"backend": backend, "keep": "sum"}
    if times > 1:
        (folder / "long.py").write_text(LONG.format(times=times))
        own["product"] = f"{folder / 'long.py'}:work"
    return plans.load(harness.write_plan(folder / "results", folder / "input.npy", **own))


def timed(session: Any) -> tuple[float, float]:
    """Seconds of wall time and of all processors that a shard takes."""
    from shardwise.multiply.job import ShardJob

    wall, cpu = time.perf_counter(), time.process_time()
    ShardJob(session, "00000").run()
    return time.perf_counter() - wall, time.process_time() - cpu


def cost(
    plan: Any, rounds: int, turns: int, budget: harness.Budget
) -> list[list[tuple[float, float]]]:
    """Seconds of each round, with all of it and without, in turns that begin in turn."""
    from shardwise.multiply import session as sessions

    session, found = sessions.Session(plan, 0), [[], []]
    for _ in range(2):
        timed(session)
    for number in range(rounds):
        if not budget.left:
            break
        for off in (0, 1) if number % 2 else (1, 0):
            for _ in range(turns):
                if off:
                    with silence():
                        found[1].append(timed(session))
                else:
                    found[0].append(timed(session))
    return found


def costs(options: argparse.Namespace, folder: Path) -> None:
    """The table of what it costs."""
    columns = ["shard", "pairs", "seconds without", "seconds with", "wall: more", "spread",
               "CPU: more"]  # fmt: skip
    table = harness.Table("cost of telemetry", columns, options.json)
    cells = TINY if options.tiny else CELLS
    chosen = [name for name in cells if not options.numpy or options.tiny or name in ON_NUMPY]
    for i, name in enumerate(chosen):
        count, dim, times, share = cells[name]
        budget = harness.Budget(options.minutes * share / sum(cells[n][-1] for n in chosen))
        plan = planned(folder / f"cost {i}", count, dim, options.numpy, times)
        on, off = cost(plan, options.rounds, TURNS if times == 1 else 1, budget)
        walls = [(a[0] - b[0]) / b[0] for a, b in zip(on, off, strict=True)]
        cpus = [(a[1] - b[1]) / b[1] for a, b in zip(on, off, strict=True)]
        without, with_it = (statistics.median(t[0] for t in kind) for kind in (off, on))
        error = 1.25 * statistics.stdev(walls) / len(walls) ** 0.5  # of a median
        row = [name, len(on), without, with_it, percent(statistics.median(walls)),
               f"± {100 * error:.2f} %", percent(statistics.median(cpus))]  # fmt: skip
        table.row(row, {"with": on, "without": off})
    table.note("with and without in turns, on one session; medians of the pairs")
    table.end()


def percent(share: float) -> str:
    """A share, with its sign."""
    return f"{100 * share:+.2f} %"


def watched(uuid: str, session: Any) -> dict[str, list[float]]:
    """What nvidia-smi says of a device while a shard is computed."""
    from shardwise.multiply.job import ShardJob

    line = ["nvidia-smi", f"--query-gpu={','.join(query for query, _ in SMI.values())}",
            "--format=csv,noheader,nounits", f"--id={uuid}", f"--loop-ms={SMI_MS}"]  # fmt: skip
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as smi:
        smi.stdout.readline()  # it has begun
        ShardJob(session, "00000").run()
        smi.terminate()
        rows = [row.split(", ") for row in smi.stdout.read().splitlines()]
    whole = [row for row in rows if len(row) == len(SMI)]
    return {
        name: [float(row[i].strip()) * unit for row in whole if row[i].strip()[:1].isdigit()]
        for i, (name, (_, unit)) in enumerate(SMI.items())
    }


def agreement(options: argparse.Namespace, folder: Path) -> None:
    """The table of our samples beside those of nvidia-smi."""
    from shardwise.multiply import session as sessions
    from shardwise.multiply.job import ShardJob
    from shardwise.records import receipts

    plan = planned(folder / "long", 16, 4096, False, options.times)
    session = sessions.Session(plan, 0)
    ShardJob(session, "00000").run()  # a first one compiles
    seen = watched(session.device["uuid"], session)
    receipt = receipts.read(plan.results.receipt("00000"), receipts.ProductReceipt)
    told = receipt.telemetry
    columns = ["quantity", "mean, ours", "mean, nvidia-smi", "largest, ours", "largest, nvidia-smi"]
    table = harness.Table("nvidia-smi", columns, options.json)
    for name, values in seen.items():
        ours = told[name] or {"mean": None, "max": None}
        theirs = (statistics.fmean(values), max(values)) if values else (None, None)
        table.row([name, ours["mean"], theirs[0], ours["max"], theirs[1]])
    watts = statistics.fmean(seen["power_watts"]) if seen["power_watts"] else None
    joules = watts * told["seconds"] if watts else None
    table.row(["energy_joules", told["energy_joules"], joules, None, None], {"receipt": receipt})
    table.note(f"a shard of {told['seconds']:.0f} s; nvidia-smi every {SMI_MS} ms")
    table.note("nvidia-smi's energy is its mean power times those seconds")
    table.end()


def main() -> None:
    """Print both tables, without a GPU the first; measure in a folder that is removed."""
    parser = harness.parser(__doc__.split("\n")[0])
    transfers.work_folder(parser)
    parser.add_argument("--rounds", type=int, default=40, help="of up to three pairs each")
    parser.add_argument("--times", type=int, default=300, help="products in a row, of the long one")
    parser.add_argument("--numpy", action="store_true", help="without a GPU, and the cost alone")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.tiny:
        options.numpy, options.rounds = True, 2
    harness.need_gpu(options.numpy)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        costs(options, Path(name).resolve())
        if not options.numpy:
            agreement(options, Path(name).resolve())


if __name__ == "__main__":
    main()
