"""Whether advice holds: a run, what it is advised to change, and the same run with that changed.

Each row is a run that loses time in one way. Its receipts are asked for advice, and the key that
the row is about must be among it. The run as it was and the run as advised take turns, the other
one first in each round, with the input out of the page cache before each. It runs on the CPU, by
the command lines that a user types, and takes some GB of disk.
"""

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import harness
import numpy as np
import transfers
from shardwise.observe import advice
from shardwise.observe.folder import Observer
from shardwise.plan import plan as plans

SCRIPTS = harness.REPO / "scripts"


@dataclass(frozen=True)
class Cell:
    """A run that loses time.

    Attributes
    ----------
    shape
        Of a matrix.
    mib
        Of the stack.
    key
        Of the advice that is followed.
    before, after
        Config keys, without and with the advice.
    single
        Whether each shard has a process of its own before: as `dispatch: jobs` has.
    """

    name: str
    shape: tuple[int, int]
    mib: float
    key: str
    before: dict[str, Any]
    after: dict[str, Any]
    single: bool = False
    common: dict[str, Any] = field(default_factory=dict)


ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

CELLS = (
    Cell("a process for each shard", (64, 64), 32, "dispatch: pool", {}, {}, single=True,
         common={"shards": 10, "keep": "sum"}),
)  # fmt: skip


def write_stack(path: Path, cell: Cell, tiny: bool) -> None:
    """A stack of normal numbers, on the disk."""
    count = max(
        32, int(cell.mib * harness.MIB * (0.01 if tiny else 1)) // (4 * np.prod(cell.shape))
    )
    shape = (int(count), *cell.shape)
    stack = np.lib.format.open_memmap(path, "w+", "float32", shape)
    flat, at = stack.reshape(-1), 0
    for piece in harness.pieces("float32", stack.size):
        flat[at : at + piece.size] = piece
        at += piece.size
    stack.flush()
    del stack


def prepare(folder: Path, stack: Path, cell: Cell, advised: bool) -> Path:
    """A fresh plan; the path of its ``plan.tsv``."""
    shutil.rmtree(folder, ignore_errors=True)
    own = {"backend": "numpy", **cell.common, **(cell.after if advised else cell.before)}
    return harness.write_plan(folder, stack, **own)


def compute(plan: Path, cell: Cell, advised: bool) -> float:
    """Seconds in which all shards are computed."""
    begin = time.perf_counter()
    if cell.single and not advised:
        for shard in plans.load(plan).shards:
            _multiply(plan, "--shard", shard)
    else:
        _multiply(plan, "--all")
    return time.perf_counter() - begin


def _multiply(plan: Path, *words: str) -> None:
    line = [sys.executable, str(SCRIPTS / "multiply.py"), "--plan", str(plan), *words]
    environ = os.environ | ONE_THREAD  # threads of BLAS that wait for each other would be noise
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=environ)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])


def advised_on(plan: Path, key: str) -> advice.Advice | None:
    """The advice of a key that a run gets."""
    seen = Observer(plan.parent).look()
    return next((a for a in advice.advise(seen) if a.key == key), None)


def measure(folder: Path, cell: Cell, options: Any) -> list[Any]:
    """The cells of a row."""
    stack = folder / "input.npy"
    write_stack(stack, cell, options.tiny)
    took: dict[bool, list[float]] = {False: [], True: []}
    said = None
    for number in range(options.rounds):
        for advised in (number % 2 == 1, number % 2 == 0):
            plan = prepare(folder / "run", stack, cell, advised)
            transfers.evict(stack)
            took[advised].append(compute(plan, cell, advised))
            if not advised and number == 0:
                said = advised_on(plan, cell.key)
            shutil.rmtree(plan.parent)
    before, after = took[False], took[True]
    gains = [b / a for b, a in zip(before, after, strict=True)]
    promised = f"{said.seconds:.1f}" if said else "no advice"
    was, now = harness.median(before), harness.median(after)
    faster = f"{sum(gain > 1 for gain in gains)} of {len(gains)}"
    return [
        cell.name,
        f"`{cell.key}`",
        promised,
        was,
        now,
        was - now,
        harness.median(gains),
        faster,
    ]


def main() -> None:
    """Measure all rows and print the table."""
    parser = harness.parser(__doc__)
    transfers.work_folder(parser)
    parser.add_argument("--rounds", type=int, default=5, help="of each row")
    parser.add_argument("--only", default="", help="rows whose name holds this")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    budget = harness.Budget(options.minutes)
    columns = ["the run", "advised", "said to save, s", "before, s", "as advised, s",
               "saved, s", "times as fast", "faster in"]  # fmt: skip
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        table = harness.Table("advice", columns, options.json)
        for cell in itertools.filterfalse(lambda cell: options.only not in cell.name, CELLS):
            if budget.left <= 0:
                table.note(f"{cell.name}: skipped, out of time")
                continue
            table.row(measure(Path(name), cell, options))
        table.end()


if __name__ == "__main__":
    main()
