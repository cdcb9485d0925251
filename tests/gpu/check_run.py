"""Check a finished run on GPUs: every device worked, on one shard at a time; the sum is right.

python tests/gpu/check_run.py results/digits --exact
"""

import argparse
import csv
import json
import re
import subprocess
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

UUID = re.compile(r"GPU-[0-9a-f-]{36}")
SPREAD = 8
"""Standard deviations that no rounding error of an element reaches."""


def load_receipts(results: Path) -> list[dict[str, Any]]:
    """The receipts of all shards of the plan; a missing one is an error of the run."""
    with (results / "plan.tsv").open(newline="") as file:
        names = [f"{row['shard']}-{row['key']}" for row in csv.DictReader(file, delimiter="\t")]
    return [json.loads((results / "products" / f"{name}.json").read_bytes()) for name in names]


def device_problems(receipts: list[dict[str, Any]], devices: list[str]) -> list[str]:
    """What is wrong with the devices and the times of the shards, given the machine's GPUs."""
    foreign = {r["backend"] for r in receipts} - {"cupy"}
    if foreign:
        return [f"some shards were computed by {', '.join(sorted(foreign))}, not cupy"]
    worked = by_device(receipts)
    problems = [f"{uuid} computed nothing" for uuid in devices if uuid not in worked]
    problems += [f"{uuid} is not a GPU of this machine" for uuid in worked if uuid not in devices]
    for uuid, own in worked.items():
        for before, after in pairwise(own):
            # A process may read its next shard while it computes one: that is no second task.
            alone = (before["node"], before["process"]) == (after["node"], after["process"])
            if after["started"] < before["finished"] and not alone:
                problems.append(f"{uuid} had shards {before['shard']} and {after['shard']} at once")
    return problems


def by_device(receipts: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Receipts by the UUID of their device, in order of time."""
    found = defaultdict(list)
    for receipt in sorted(receipts, key=lambda r: r["started"]):
        found[receipt["device"]["uuid"]].append(receipt)
    return dict(sorted(found.items()))


def sum_problems(
    total: np.ndarray, stack: np.ndarray, product: str, exact: bool, xp: Any = np
) -> list[str]:
    """What is wrong with a sum, float64, of products of a real stack ``(n, m, k)``.

    If ``exact``, as for small whole numbers, it must be NumPy's to the bit. Else sums of products
    of random numbers are off by less than ``8 √k u`` of a typical element (u: unit roundoff), as
    errors average out; those in tf32, with 13 bits less, are off by more.
    """
    reference = reference_sum(xp, stack, product)
    inner = stack.shape[1] if product == "A.T @ A" else stack.shape[2]
    unit = float(np.finfo(stack.dtype).eps) / 2
    typical = float(np.linalg.norm(reference)) / reference.size**0.5
    limit = 0.0 if exact else SPREAD * inner**0.5 * unit * typical
    error = np.abs(total - reference)
    wrong = int(np.count_nonzero(~(error <= limit)))
    say(f"largest error of the sum: {error.max():.2g}, at most {limit:.2g}")
    return [f"{wrong} elements of the sum are not those of NumPy"] if wrong else []


def reference_sum(xp: Any, stack: np.ndarray, product: str) -> np.ndarray:
    """The sum of the products in float64."""
    total = 0.0
    for matrix in stack:  # one by one, in order
        a = xp.asarray(matrix, dtype=xp.float64)
        left, right = {"A @ A": (a, a), "A.T @ A": (a.T, a), "A @ A.T": (a, a.T)}[product]
        total = total + left @ right
    return total if xp is np else xp.asnumpy(total)


def array_module() -> Any:
    """Cupy if it works, as large references take long; else NumPy."""
    try:
        import cupy

        cupy.zeros(1)
    except Exception:  # no cupy, no driver, no device: all mean NumPy
        return np
    return cupy


def machine_devices() -> list[str]:
    """UUIDs of all GPUs of this machine."""
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    return UUID.findall(listing.stdout)


def say_devices(receipts: list[dict[str, Any]], finished: float) -> None:
    """What each device did, and how long the run took from its first product to its sum."""
    for uuid, own in by_device(receipts).items():
        busy = sum(r["finished"] - r["started"] for r in own)
        say(f"{uuid}: {len(own)} shards in {busy:.2f} s")
    wall = finished - min(r["started"] for r in receipts)
    say(f"from the first product to the sum: {wall:.1f} s")


def say(text: str) -> None:
    """A line for the reader."""
    sys.stdout.write(text + "\n")


def main() -> int:
    """Check one results folder, print what each device did and what is wrong."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("results", type=Path, help="results folder of a finished run")
    arguments.add_argument("--exact", action="store_true", help="the sum must be right to the bit")
    options = arguments.parse_args()
    results = options.results
    receipts = load_receipts(results)
    facts = json.loads((results / "plan.json").read_bytes())
    with (results / "sources.tsv").open(newline="") as file:
        (source,) = csv.DictReader(file, delimiter="\t")
    stack = np.load(source["path"], mmap_mode="r")
    problems = device_problems(receipts, machine_devices())
    if not problems:
        finished = json.loads((results / "summary.json").read_bytes())["finished"]
        say_devices(receipts, finished)
    total = np.load(results / "sum.npy")
    xp = np if options.exact else array_module()
    problems += sum_problems(total, stack, facts["problem"]["product"], options.exact, xp)
    for problem in problems:
        say(f"WRONG: {problem}")
    if not problems:
        say(f"{results}: all right")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
