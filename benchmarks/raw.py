"""What a machine can do at all: disk, page cache, PCIe and matrix products, each on its own.

Run it on each kind of node when nothing else is at work there, and compare the rates with those of
the page. Each figure is the best of two tries.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import numpy as np
import transfers

TRIES = 2


def measurements(
    xp: Any, folder: Path, nbytes: int, tiny: bool = False
) -> dict[str, Callable[[], float]]:
    """What is measured: by name, a call that gives bytes or operations per second, once."""
    memory = transfers.ring(xp, tiny)
    source, target = folder / "raw-source", folder / "raw-target"
    transfers.write(source, nbytes, memory, direct=False)
    size = source.stat().st_size

    def cold(threads: int, direct: bool) -> float:
        transfers.evict(source)
        return size / transfers.read(source, memory, direct, threads)

    def cached(threads: int) -> float:
        transfers.warm(source, memory)
        return size / transfers.read(source, memory, False, threads)

    def both() -> float:
        transfers.evict(source)
        return size / transfers.read_and_write(source, target, size, memory)

    found: dict[str, Callable[[], float]] = {
        "direct read, 4 threads": lambda: cold(4, True),
        "direct read, 16 threads": lambda: cold(transfers.THREADS, True),
        "buffered cold read, 1 thread": lambda: cold(1, False),
        "buffered cold read, 16 threads": lambda: cold(transfers.THREADS, False),
        "direct write, 4 threads": lambda: size / transfers.write(target, size, memory, True, 4),
        "direct write, 16 threads": lambda: size / transfers.write(target, size, memory),
        "buffered write, 1 thread": lambda: size / transfers.write(target, size, memory, False, 1),
        "direct read and write at once, each": both,
        "page cache to pinned memory, 1 thread": lambda: cached(1),
        "page cache to pinned memory, 16 threads": lambda: cached(transfers.THREADS),
    }
    if xp is not np:
        found["PCIe up"] = lambda: transfers.pcie(xp, True, False)
        found["PCIe down"] = lambda: transfers.pcie(xp, False, True)
        found["PCIe both ways, each"] = lambda: transfers.pcie(xp, True, True)
    dim = 64 if tiny else transfers.GEMM_DIM
    for dtype in ("float64", "float32", *(["float16"] if xp is not np else [])):
        found[f"products {dtype}, d = {dim}"] = lambda dtype=dtype: transfers.gemm(xp, dtype, dim)
    return found


def main() -> None:
    """Measure all of it and print the table."""
    parser = harness.parser(__doc__)
    harness.add_folder(parser)
    parser.add_argument("--gib", type=float, default=4.0, help="GiB of the files")
    parser.add_argument("--cpu", action="store_true", help="products on the CPU; no PCIe")
    options = parser.parse_args()
    xp = harness.array_module(options.tiny or options.cpu)
    nbytes = 20 * harness.MIB if options.tiny else int(options.gib * 1024) * harness.MIB
    budget = harness.Budget(options.minutes)
    with harness.working_folder(options) as folder:
        harness.say(
            f"Raw rates of {harness.device_name(xp)}, {harness.machine()}; files of "
            f"{nbytes / harness.GB:.1f} GB, {transfers.file_system(folder)}"
        )
        table = harness.Table("raw", ["what", "GB/s", "TFLOP/s"], options.json)
        for what, measure in measurements(xp, folder, nbytes, options.tiny).items():
            if budget.left <= (0 if options.tiny else 10):
                table.note(f"{what}: skipped, out of time")
                continue
            try:
                best = max(measure() for _ in range(TRIES))
            except Exception as error:
                table.row([what, "failed", "failed"])
                table.note(f"{what}: {harness.reason(error)}")
                continue
            flops = what.startswith("products")
            columns = [None, best / 1e12] if flops else [best / harness.GB, None]
            table.row([what, *columns], {"per_second": best})
        table.end()


if __name__ == "__main__":
    main()
