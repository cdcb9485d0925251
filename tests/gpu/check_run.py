"""Check a finished run on GPUs: each had one process at a time, and the sum of A @ A is right.

python -m tests.gpu.check_run results/digits --exact
"""

import argparse
import csv
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.uses import one_at_a_time

SPREAD = 8
"""Standard deviations that no rounding error of an element reaches."""


def rows(table: Path) -> list[dict[str, str]]:
    """The rows of a table of the run."""
    with table.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def check_devices(receipts: list[dict[str, Any]], devices: set[str]) -> dict[str, int]:
    """All these GPUs, and nothing else, computed; return how many processes each one had.

    A process may read its next shard while it computes one, so it counts from its first shard to
    its last.
    """
    assert {receipt["backend"] for receipt in receipts} == {"cupy"}
    spans: dict[tuple[Any, ...], tuple[float, float]] = {}
    for receipt in receipts:
        holder = receipt["device"]["uuid"], receipt["node"], receipt["process"]
        begin, end = spans.get(holder, (math.inf, 0.0))
        spans[holder] = min(begin, receipt["started"]), max(end, receipt["finished"])
    found = one_at_a_time((uuid, *span) for (uuid, *_), span in spans.items())
    assert set(found) == devices, f"{sorted(found)} computed, not {sorted(devices)}"
    return found


def check_sum(total: np.ndarray, stack: np.ndarray, exact: bool) -> str:
    """Compare a sum, float64, with that of NumPy over a real stack; return the largest error.

    If ``exact``, as for small whole numbers, both must agree to the bit. Else sums of products of
    random numbers are off by less than ``8 √k u`` of a typical element (u: unit roundoff), as
    errors average out; those in tf32, with 13 bits less, are off by more.
    """
    reference = np.zeros(total.shape)
    for matrix in stack:  # one by one, in order
        wide = matrix.astype("float64")
        reference += wide @ wide
    unit = float(np.finfo(stack.dtype).eps) / 2
    typical = float(np.linalg.norm(reference)) / reference.size**0.5
    limit = 0.0 if exact else SPREAD * stack.shape[2] ** 0.5 * unit * typical
    error = float(np.abs(total - reference).max())
    assert error <= limit, f"the sum is off by {error:.2g}, not at most {limit:.2g}"
    return f"largest error of the sum: {error:.2g}, at most {limit:.2g}"


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("results", type=Path, help="results folder of a finished run")
    arguments.add_argument("--exact", action="store_true", help="the sum must be right to the bit")
    options = arguments.parse_args()
    results = options.results
    names = [f"{row['shard']}-{row['key']}.json" for row in rows(results / "plan.tsv")]
    receipts = [json.loads((results / "products" / name).read_bytes()) for name in names]
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    used = check_devices(receipts, set(re.findall(r"GPU-[0-9a-f-]{36}", listing.stdout)))
    (source,) = rows(results / "sources.tsv")
    stack = np.load(source["path"], mmap_mode="r")
    told = check_sum(np.load(results / "sum.npy"), stack, options.exact)
    sys.stdout.write(f"{used}\n{told}\n{results}: all right\n")
