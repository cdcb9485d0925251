"""The fixed cost of an array task: one shard of one tiny matrix, as a whole process.

Beside it: Python alone, and Python that imports the array library and touches the device. All take
turns; each figure is a median, and the ratio the median of the ratios within a round.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import harness
import numpy as np

DEVICE = "import cupy; cupy.cuda.Device(0).use(); cupy.zeros(1)"
RUN_SECONDS = 60


def commands(folder: Path, xp: Any) -> dict[str, list[str]]:
    """Command lines by what the table calls them; ours first, what it is compared with second."""
    stack = folder / "stack.npy"
    np.save(stack, np.ones((1, 4, 4), "float32"))
    backend = "numpy" if xp is np else "cupy"
    plan = harness.write_plan(folder / "results", stack, backend=backend)
    script = str(harness.REPO / "scripts" / "multiply.py")
    touch = "import numpy" if xp is np else DEVICE
    return {
        "scripts/multiply.py": [sys.executable, script, "--plan", str(plan), "--shard", "00000"],
        touch: [sys.executable, "-c", touch],
        "Python alone": [sys.executable, "-c", "pass"],
    }


def measure(
    lines: dict[str, list[str]], rounds: int, budget: harness.Budget
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Seconds of every round, and why where there are none, by command.

    The first run of each is not counted: it compiles kernels and fills the page cache.
    """
    found: dict[str, list[float]] = {name: [] for name in lines}
    failed: dict[str, str] = {}
    for turn in range(rounds + 1):
        if turn > 1 and budget.left == 0:
            break
        for name, command in lines.items():
            if name in failed:
                continue
            try:
                took, _ = harness.command(command, timeout=RUN_SECONDS)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                failed[name] = harness.reason(error)
                continue
            if turn:
                found[name].append(took)
    return {n: t for n, t in found.items() if n not in failed and t}, failed


def main() -> None:
    """Time all in turn and print the table."""
    parser: argparse.ArgumentParser = harness.parser(__doc__)
    harness.add_folder(parser)
    parser.add_argument("--rounds", type=int, default=7, help="at most, while time is left")
    options = parser.parse_args()
    xp = harness.array_module(options.tiny)
    budget = harness.Budget(options.minutes)
    harness.say(f"Start-up on {harness.device_name(xp)}, {harness.machine()}")
    with harness.working_folder(options) as folder:
        lines = commands(folder, xp)
        found, failed = measure(lines, 1 if options.tiny else options.rounds, budget)
        headings = ["process", "rounds", "seconds", "ours takes"]
        table = harness.Table("startup", headings, options.json)
        ours = found.get(next(iter(lines)), [])
        for label in lines:
            took = found.get(label, [])
            times = harness.median(a / b for a, b in zip(ours, took, strict=False))
            middle = "failed" if label in failed else harness.median(took)
            text = f"{times:.2f} times as long" if times else None
            table.row([f"`{label}`", len(took), middle, text], {"seconds": took})
        for label, why in failed.items():
            table.note(f"{label}: {why}")
        table.end()


if __name__ == "__main__":
    main()
