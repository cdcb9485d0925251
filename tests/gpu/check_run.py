"""Check a finished run on GPUs: which devices worked, one shard at a time on each, the sum right.

python tests/gpu/check_run.py results/digits --exact
"""

from __future__ import annotations

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

DOUBLE = 2.0**-53  # unit roundoff of float64


def load_receipts(results: Path) -> list[dict[str, Any]]:
    """The receipts of all shards of the plan; a missing one is an error of the run."""
    with (results / "plan.tsv").open(newline="") as file:
        shards = [row["shard"] for row in csv.DictReader(file, delimiter="\t")]
    return [json.loads((results / "products" / f"{s}.json").read_bytes()) for s in shards]


def device_problems(receipts: list[dict[str, Any]], devices: list[str]) -> list[str]:
    """What is wrong with who computed what, and when, on the GPUs of a machine."""
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


def sum_problems(total: np.ndarray, stack: np.ndarray, product: str, exact: bool) -> list[str]:
    """What is wrong with a sum, float64, of products of a real stack ``(n, m, k)``.

    Parameters
    ----------
    exact
        Whether all numbers are whole and small enough that no rounding happens: then the sum
        must be NumPy's to the bit. Otherwise both checks of :func:`rounding_problems` decide.
    """
    xp = np if exact else array_module()
    reference, moduli = reference_sum(xp, stack, product)
    if exact:
        wrong = int(np.count_nonzero(total != reference))
        return [f"{wrong} elements of the sum differ from NumPy's"] if wrong else []
    inner = stack.shape[1] if product == "A.T @ A" else stack.shape[2]
    unit = float(np.finfo(stack.dtype).eps) / 2
    return rounding_problems(total, reference, moduli, (stack.shape[0], inner, unit))


def rounding_problems(
    total: np.ndarray, reference: np.ndarray, moduli: np.ndarray, sizes: tuple[int, int, float]
) -> list[str]:
    """Compare a sum of products with the same sum in float64, in two ways.

    1. No element may be off by more than rounding can explain. With γ(n, u) = n u / (1 - n u), a
       product accumulated in precision u over k terms is off by at most γ(k, u) |A| |B|, in any
       order (N. J. Higham, "Accuracy and Stability of Numerical Algorithms", chapter 3). The sum
       of n products in float64 adds γ(n, 2⁻⁵³) times the moduli of what is summed, and the
       reference is off by γ(k, 2⁻⁵³) + γ(n, 2⁻⁵³). All are relative to Σ |A| |B|, the `moduli`.
    2. That bound is for the worst case. On random data errors average out, and the Frobenius norm
       of the error stays below √k u times that of the sum; tf32, with 13 bits less, does not.

    Parameters
    ----------
    sizes
        The number of products n, the length of an inner product k, and the unit roundoff u.
    """
    n, k, unit = sizes
    product, reference_error = gamma(k, unit), gamma(k, DOUBLE) + gamma(n, DOUBLE)
    worst = product + (1 + product) * gamma(n, DOUBLE) + reference_error
    error = np.abs(total - reference)
    wrong = int(np.count_nonzero(~(error <= worst * moduli)))
    relative = float(np.linalg.norm(error) / np.linalg.norm(reference))
    limit = k**0.5 * unit
    say(f"error of the sum: {relative:.2g} of its norm, at most {limit:.2g}")
    problems = [f"{wrong} elements of the sum are beyond the bound of rounding"] if wrong else []
    if not relative <= limit:
        problems.append(f"the sum is off by {relative:.2g} of its norm: less precise than {unit}")
    return problems


def gamma(n: int, unit: float) -> float:
    """Relative error of n operations at most, each rounded by `unit`."""
    return n * unit / (1 - n * unit)


def reference_sum(xp: Any, stack: np.ndarray, product: str) -> tuple[np.ndarray, np.ndarray]:
    """The sum of the products, and of the products of the moduli, in float64."""
    total = moduli = 0.0
    for matrix in stack:  # one by one, in order
        a = xp.asarray(matrix, dtype=xp.float64)
        left, right = {"A @ A": (a, a), "A.T @ A": (a.T, a), "A @ A.T": (a, a.T)}[product]
        total = total + left @ right
        moduli = moduli + abs(left) @ abs(right)
    return (total, moduli) if xp is np else (xp.asnumpy(total), xp.asnumpy(moduli))


def array_module() -> Any:
    """Cupy where it works, since large references take long, else NumPy."""
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


def main(argv: list[str] | None = None) -> int:
    """Check one results folder, print what each device did and what is wrong."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("results", type=Path, help="results folder of a finished run")
    arguments.add_argument("--exact", action="store_true", help="the sum must be right to the bit")
    options = arguments.parse_args(argv)
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
    problems += sum_problems(total, stack, facts["problem"]["product"], options.exact)
    for problem in problems:
        say(f"WRONG: {problem}")
    if not problems:
        say(f"{results}: all right")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
