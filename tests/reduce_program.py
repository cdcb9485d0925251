"""Ranks that reduce the same stack over and over: however it is cut, the bits are the same.

All ranks draw the same stacks, and six ways to compute and sum each. Rank 0 computes the shards,
some of the ranks reduce them, and rank 0 prints which results differ.

    mpiexec -n 4 python -m mpi4py -m tests.reduce_program FOLDER BACKEND SEED WAYS
"""

import json
import shutil
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI
from shardwise.files import pieces
from shardwise.files.paths import STATISTICS, Results
from shardwise.plan import memory
from shardwise.reduce import reducer

from tests import factories

DTYPES = ("float16", "float32", "float64", "complex64", "complex128", "int16")


def draw(random: np.random.Generator) -> tuple[np.ndarray, str]:
    """A stack of a random dtype, size and scale, and the product to compute."""
    dtype, (dim, seed) = str(random.choice(DTYPES)), random.integers(1, 9, 2)
    shape = int(random.integers(1, 40)), int(dim), int(dim)
    if dtype == "int16":
        return factories.stack(shape, dtype, int(seed)), "A @ A"
    wide = 1 if dtype == "float16" else 8
    scales = 10.0 ** random.integers(-wide, wide + 1, (shape[0], 1, 1))
    stack = factories.noise(shape, "complex128" if "complex" in dtype else "float64", int(seed))
    return (stack * scales).astype(dtype), str(random.choice(["A @ A", "A.T @ A"]))


def way(random: np.random.Generator, n: int, ranks: int) -> dict:
    """One way to compute and sum a stack of n matrices."""
    return {
        "shards": int(random.integers(1, min(n, 12) + 1)),
        "keep": str(random.choice(["products", "sum"])),
        "materialize": bool(random.random() < 0.2),
        "ranks": int(random.integers(1, ranks + 1)),
        "piece": int(random.choice([16, 64, 256, 2**20])),
        "batch": int(random.choice([1, 100, 1000, 2**23])),
    }


def reduced(comm: MPI.Comm, chosen: dict, plan: Path, dtype: str) -> dict[str, bytes]:
    """Reduce a plan with some of the ranks; return the bytes of each result on all ranks."""
    names = [name for name in STATISTICS if "complex" not in dtype or name not in ("min", "max")]
    if chosen["keep"] == "sum":
        names = ["sum", "mean"]
    sub = comm.Split(comm.rank >= chosen["ranks"])
    if comm.rank < chosen["ranks"]:
        reducer.run(sub, plan, names)
    sub.Free()
    meet(comm)
    return {name: Results(plan.parent).statistic(name).read_bytes() for name in names}


def meet(comm: MPI.Comm) -> None:
    """A barrier that leaves the cores to ranks that still work."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(1e-3)


def main() -> None:
    """Try all ways, and report on rank 0."""
    comm = MPI.COMM_WORLD
    root, backend, seed, ways = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    random = np.random.default_rng(seed)  # the same on all ranks
    differ, seen = [], dict[str, bytes]()
    for tried in range(ways):
        if tried % 6 == 0:
            (stack, product), seen = draw(random), {}
        chosen, folder = way(random, len(stack), comm.size), root / str(tried)
        pieces.CHECKSUM_PIECE_BYTES = chosen["piece"]
        memory.REDUCE_BATCH_BYTES = chosen["batch"]
        if comm.rank == 0:
            over = {key: chosen[key] for key in ("shards", "keep", "materialize")}
            over |= {"product": product, "backend": backend, "nonfinite": "allow"}
            factories.listed(factories.plan(folder, stack, **over))
        meet(comm)
        found = reduced(comm, chosen, folder / "results" / "plan.tsv", stack.dtype.name)
        for name, raw in found.items():
            if seen.setdefault(name, raw) != raw:
                differ.append([name, stack.dtype.name, stack.shape, product, chosen])
        meet(comm)
        if comm.rank == 0:
            shutil.rmtree(folder)
    if comm.rank == 0:
        sys.stdout.write(json.dumps({"tried": ways, "differ": differ}) + "\n")


if __name__ == "__main__":
    main()
