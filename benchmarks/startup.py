"""The fixed cost of an array task: one shard of one tiny matrix, as a whole process.

Beside it: Python alone, and Python that imports the array library and touches the device. All take
turns; each figure is a median, and the ratio the median of the ratios within a round. The first run
of each is not counted: it compiles kernels and fills the page cache.
"""

import sys
from pathlib import Path
from typing import Any

import harness
import numpy as np

DEVICE = "import cupy; cupy.cuda.Device(0).use(); cupy.zeros(1)"


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


def main() -> None:
    """Time all in turn and print the table."""
    parser = harness.parser(__doc__)
    harness.add_folder(parser)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    xp = harness.array_module(options.tiny)
    harness.say(f"Start-up on {harness.device_name(xp)}, {harness.machine()}")
    with harness.working_folder(options) as folder:
        lines = commands(folder, xp)
        turns = [
            [harness.cost(line).seconds for line in lines.values()]
            for _ in range(1 + (1 if options.tiny else options.rounds))
        ]
    table = harness.Table(["process", "seconds", "ours takes, times as long"])
    seconds = np.array(turns[1:])
    for label, took in zip(lines, seconds.T, strict=True):
        ratio = np.median(seconds[:, 0] / took)
        table.row([f"`{label}`", float(np.median(took)), float(ratio)])
    table.end()


if __name__ == "__main__":
    main()
