"""Times whole shard jobs on one or more GPUs, next to scripts for the same and bare reads.

Every peer of peers.py has one process per GPU; starting it, allocating memory and compiling kernels
are not timed. The clock runs from the start signal to the last result; ours are committed with
receipts. All take turns on the same files, cold or in the page cache. Figures are GB of input per
second; medians over the rounds. On NumPy every peer uses all cores (``OMP_NUM_THREADS``).
TMPDIR names the disk. ``--only`` and ``--peers`` are regular expressions for rows and columns. The
input are ``--files`` of 64 MiB; for sums from the page cache each is read ``--times`` per GPU.
"""

import argparse
import contextlib
import functools
import itertools
import multiprocessing
import os
import re
import shutil
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import harness
import numpy as np
import peers
from peers import Task
from shardwise.devices import choose

TOLERANCE = {"float32": 1e-3, "float16": 2e-2}  # of a row's norm
SCRIPTS = {f"script, {n} readers": {"peer": "Script", "readers": n} for n in (4, 8, 16)}
PEERS: dict[str, dict[str, Any]] = {
    "shardwise": {}, "verify: false": {"over": {"verify": False}}, "plain loop": {"peer": "Plain"},
    **SCRIPTS, "raw": {"peer": "Raw"}, "tf32x3": {"over": {"precision": "tf32x3"}},
}  # fmt: skip
ON_NUMPY = ("shardwise", "verify: false", "plain loop")


def rows(options: argparse.Namespace) -> list[Task]:
    """All rows of the table; rows on the same files follow each other."""
    if options.tiny:
        return [Task("float32", 16, backend="numpy", file_bytes=2**14)]
    if options.numpy:
        cells = [(dim, product) for dim in (64, 512, 2048) for product in ("A.T @ A", "A @ A")]
        return [Task("float32", dim, product=own, backend="numpy") for dim, own in cells]
    slow = ("products", "cached"), ("sum", "cold"), ("products", "cold")
    return [
        *(Task(own, d) for own in ("float16", "float32") for d in (32, 256, 1024, 4096)),
        *(Task("float32", 4096, keep, where) for keep, where in slow),
    ]  # fmt: skip


def label(row: Task) -> str:
    """The name of a row in the table."""
    return f"{row.dtype} d={row.dim} {row.product} {row.keep} {row.where}"


def tasks(row: Task, pattern: str) -> dict[str, Task]:
    """The tasks of a row by peer, for the peers whose names match ``pattern``."""
    names = [name for name in PEERS if row.backend == "cupy" or name in ON_NUMPY]
    if row.dtype != "float32":
        names = [name for name in names if name != "tf32x3"]
    return {name: replace(row, **PEERS[name]) for name in names if re.search(pattern, name)}


def write_files(folder: Path, row: Task, count: int) -> list[Path]:
    """Write the files of a row unless they exist; removes those of any other row first."""
    own = folder / f"{row.dtype}-{row.dim}"
    files = [own / f"{i}.npy" for i in range(count)]
    if not own.exists():
        shutil.rmtree(folder, ignore_errors=True)
        own.mkdir(parents=True)
        for seed, file in enumerate(files):
            harness.write_stack(file, row.dtype, row.shape, seed)
    return files


def turn(task: Task, folder: Path, pools: list[ProcessPoolExecutor]) -> tuple[float, Any]:
    """GB per second of all processes of a peer, and the first row of their sum, or None."""
    harness.drop(map(Path, set(task.files) if task.where == "cold" else []))
    for old in itertools.chain(*map(folder.rglob, ("products/*.npy", "result"))):
        old.unlink()  # a run has none: to free the blocks of a large file takes a disk some time
    os.sync()
    began = time.perf_counter()
    answers = [pool.submit(peers.turn) for pool in pools]
    sizes, rows = zip(*(answer.result() for answer in answers), strict=True)
    seconds = time.perf_counter() - began
    row = None if any(own is None for own in rows) else np.sum(rows, axis=0)
    return sum(sizes) / harness.GB / seconds, row


def measure(own: dict[str, Task], gpus: list[str], rounds: int) -> dict[str, float]:
    """Rates of one row: all peers get ready one by one, then take turns."""
    turns, spawn = {}, multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        for name, task in own.items():
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=task.folder))
            pools = [stack.enter_context(ProcessPoolExecutor(1, spawn)) for _ in gpus]
            try:
                for part, (pool, gpu) in enumerate(zip(pools, gpus, strict=True)):
                    mine = replace(task, folder=f"{folder}/{part}", part=part, parts=len(gpus))
                    pool.submit(peers.begin, mine, gpu).result()
                turns[name] = functools.partial(turn, task, Path(folder), pools)
            except Exception as error:
                harness.note(f"{name}: {error!r}")
        found = harness.in_turn(turns, rounds)
    sums = [(name, total) for name, pairs in found.items() for _, total in pairs]
    sums = [(name, total) for name, total in sums if total is not None]
    for name, total in sums:
        error = np.linalg.norm(total - sums[0][1]) / np.linalg.norm(sums[0][1])
        if error > TOLERANCE[task.dtype]:
            harness.note(f"{name}: wrong by {error:.1e}")
    return {name: statistics.median(rate for rate, _ in pairs) for name, pairs in found.items()}


def main() -> None:
    """Measure row by row in a folder that is removed afterwards."""
    defaults = {"numpy": False, "rounds": 3, "gpus": [1, 2], "only": "", "peers": "", "times": 8}
    options = harness.options(__doc__, {"rounds": 1, "numpy": True}, files=64, **defaults)
    gpus = [""] if options.numpy else [device.uuid for device in choose.candidates()]
    harness.say(f"Shard jobs, {harness.machine()}, {len(gpus)} GPUs or CPU")
    harness.heading("job", "GPUs", "GB", *PEERS, "to the best script")
    chosen = [row for row in rows(options) if re.search(options.only, label(row))]
    counts = [count for count in options.gpus if count <= len(gpus)]
    with tempfile.TemporaryDirectory() as root:
        for row, count in itertools.product(chosen, counts):
            often = row.keep == "sum" and row.where == "cached" and not options.numpy
            files = write_files(Path(root, "files"), row, options.files)
            files *= options.times * count if often else 1
            whole = replace(row, files=tuple(map(str, files)), folder=root)
            rates = measure(tasks(whole, options.peers), gpus[:count], options.rounds)
            best = max((rates[n] for n in SCRIPTS if n in rates), default=rates.get("plain loop"))
            ratio = rates.get("shardwise", np.nan) / (best or np.nan)
            size = len(files) * row.nbytes / harness.GB
            harness.row(label(row), count, size, *map(rates.get, PEERS), ratio)


if __name__ == "__main__":
    main()
