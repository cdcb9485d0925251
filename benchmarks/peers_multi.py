"""Cached sums of float32 matrices on 1, 2, 4 … GPUs, beside what a good user writes instead.

The peer is plain_ranks.py, an MPI rank per GPU without checksums, proofs and files per shard. Both
take turns on the same files in the page cache. A window runs from the first byte to the last
result (ours: the first shard's start to the last one's end); "whole" is the command with its start.
Medians over the rounds; ratios are of rates, more than 1 means that Shardwise is faster.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import harness
import numpy as np
import scaling
import transfers

COLUMNS = ["GPUs", "peer GB/s", "shardwise GB/s", "ratio in the window", "peer whole s",
           "shardwise whole s", "first run whole s"]  # fmt: skip
PEER = Path(__file__).with_name("plain_ranks.py")


def run_peer(stack: Path, devices: list[str]) -> tuple[float, float, float]:
    """Seconds of the peer's window, of its command, and the corner of its sum."""
    line = ["mpiexec", "-n", str(len(devices)), sys.executable, "-m", "mpi4py", str(PEER)]
    chosen = os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(devices)}
    whole, output = harness.command([*line, str(stack)], env=chosen)
    found = json.loads(output.splitlines()[-1])
    return found["seconds"], whole, found["corner"]


def corner(plan: Path) -> float:
    """The first element of the sum over all shards of a plan."""
    files = (plan.parent / "products").rglob("*.npy")
    return sum(float(np.load(path, mmap_mode="r")[:, 0, 0].sum()) for path in files)


def arguments() -> argparse.ArgumentParser:
    """The options."""
    parser = harness.parser(__doc__)
    harness.add_folder(parser)
    parser.add_argument("--gib", type=float, default=8.0, help="GiB of files on the disk")
    parser.add_argument("--stack-gib", type=float, default=64.0, help="GiB of the stack")
    parser.add_argument("--shard-gib", type=float, default=16.0, help="GiB of a shard")
    parser.add_argument("--dim", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--set", nargs="+", type=harness.setting, default=[], help="KEY=VALUE for ours"
    )
    return parser


def main() -> None:
    """Measure in a folder that is removed afterwards."""
    options = arguments().parse_args()
    from shardwise.devices import choose

    uuids = [device.uuid for device in choose.candidates()]
    harness.say(f"{len(uuids)} GPUs, {harness.machine()}")
    table = harness.Table("peers_multi", COLUMNS, options.json)
    budget = harness.Budget(options.minutes)
    with harness.working_folder(options) as folder:
        xp = harness.array_module(False)
        bench = scaling.Bench(folder, xp, options.gib, transfers.ring(xp), tuple(options.set))
        shards = max(1, round(options.stack_gib / options.shard_gib))
        cell = scaling.Cell(options.dim, "cached", options.shard_gib, shards)
        plan = bench.plan(cell, 1)
        nbytes = cell.matrices(1) * cell.matrix_bytes
        bench.place(cell)
        for count in [n for n in (1, 2, 4, 8) if n <= len(uuids)]:
            first, rounds = None, []
            for _ in range(options.rounds + 1):
                if budget.left < scaling.RESERVE_SECONDS:
                    table.note(f"{count} GPUs: {len(rounds)} rounds, out of time")
                    break
                ours, whole = scaling.run(plan, "pool", uuids[:count])
                if first is None:  # a node that never ran us compiles our kernels
                    first = whole
                    continue
                theirs, their_whole, their_corner = run_peer(Path(plan.parents[1]), uuids[:count])
                if not np.isclose(corner(plan), their_corner, rtol=1e-3):
                    table.note(f"sums differ: {corner(plan)} and {their_corner}")
                rounds.append((theirs, ours, theirs / ours, their_whole, whole))
            if rounds:
                theirs, ours, ratio, their_whole, whole = map(
                    harness.median, zip(*rounds, strict=True)
                )
                rates = nbytes / theirs / harness.GB, nbytes / ours / harness.GB
                table.row([count, *rates, ratio, their_whole, whole, first], {"rounds": rounds})
    table.note(f"{nbytes / harness.GB:.3g} GB, {cell.matrices(1)} matrices in {shards} shards")
    table.end()


if __name__ == "__main__":
    main()
