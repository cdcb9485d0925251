"""Whether advice holds: a run that loses time, and the same run as its receipts advise.

Both take turns, the other one first in each round, with the input out of the page cache before
each. It runs on the CPU, by the command lines that a user types.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import harness
import numpy as np
import transfers
from shardwise.observe import advice
from shardwise.observe.folder import Observer
from shardwise.plan import plan as plans

SCRIPTS = harness.REPO / "scripts"


NAME, KEY = "a process for each shard", "dispatch: pool"
SHAPE, MIB = (64, 64), 32  # of a matrix, and of the stack
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def write_stack(path: Path, mib: float) -> None:
    """A stack of normal numbers, on the disk."""
    count = max(32, int(mib * harness.MIB) // (4 * SHAPE[0] * SHAPE[1]))
    numbers = np.concatenate(list(harness.pieces("float32", count * SHAPE[0] * SHAPE[1])))
    np.save(path, numbers.reshape(count, *SHAPE))


def compute(plan: Path, advised: bool) -> float:
    """Seconds in which all shards are computed: by one process, or a process for each."""
    begin = time.perf_counter()
    if advised:
        _run("dispatch.py", plan)
    else:
        for shard in plans.load(plan).shards:
            _run("multiply.py", plan, "--shard", shard)
    return time.perf_counter() - begin


def _run(script: str, plan: Path, *words: str) -> None:
    line = [sys.executable, str(SCRIPTS / script), "--plan", str(plan), *words]
    environ = os.environ | ONE_THREAD  # threads of BLAS that wait for each other would be noise
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=environ)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])


def promised(plan: Path) -> str:
    """The seconds that the advice of a run promises."""
    seen = Observer(plan.parent).look()
    found = next((a for a in advice.advise(seen) if a.key == KEY), None)
    return f"{found.seconds:.1f}" if found else "no advice"


def measure(folder: Path, options: Any) -> list[Any]:
    """The cells of the row."""
    stack, run, said = folder / "input.npy", folder / "run", "no advice"
    write_stack(stack, MIB * (0.01 if options.tiny else 1))
    took: dict[bool, list[float]] = {False: [], True: []}
    for number in range(options.rounds):
        for advised in (number % 2 == 1, number % 2 == 0):
            plan = harness.write_plan(run, stack, backend="numpy", shards=10, keep="sum")
            transfers.evict(stack)
            took[advised].append(compute(plan, advised))
            if not advised and number == 0:
                said = promised(plan)
            shutil.rmtree(run)
    before, after = took[False], took[True]
    gains = [b / a for b, a in zip(before, after, strict=True)]
    was, now = harness.median(before), harness.median(after)
    faster = f"{sum(gain > 1 for gain in gains)} of {len(gains)}"
    return [NAME, f"`{KEY}`", said, was, now, was - now, harness.median(gains), faster]


def main() -> None:
    """Measure and print the table."""
    parser = harness.parser(__doc__)
    harness.add_folder(parser)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    columns = ["the run", "advised", "said to save, s", "before, s", "as advised, s",
               "saved, s", "times as fast", "faster in"]  # fmt: skip
    with harness.working_folder(options) as folder:
        table = harness.Table("advice", columns, options.json)
        table.row(measure(folder, options))
        table.end()


if __name__ == "__main__":
    main()
