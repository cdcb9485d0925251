"""What telemetry, timelines and live files cost a shard.

Its figures stand in docs/telemetry.md. On a GPU: ``python3 benchmarks/telemetry.py --folder
/local/disk``. Without one: ``--numpy``.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import harness
import numpy as np

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


def main() -> None:
    """Print the table; measure in a folder that is removed."""
    parser = harness.parser(__doc__.split("\n")[0])
    harness.add_folder(parser)
    parser.add_argument("--rounds", type=int, default=40, help="of up to three pairs each")
    parser.add_argument("--numpy", action="store_true", help="without a GPU")
    options = parser.parse_args()
    if options.tiny:
        options.numpy, options.rounds = True, 2
    harness.need_gpu(options.numpy)
    with harness.working_folder(options) as folder:
        costs(options, folder)


if __name__ == "__main__":
    main()
