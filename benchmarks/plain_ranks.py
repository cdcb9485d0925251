"""What a good user writes instead: an MPI rank per GPU that reads ahead, multiplies and adds.

mpiexec -n RANKS python -m mpi4py plain_ranks.py FOLDER [LEAST]

Each rank takes its share of the files (one float32 matrix each), four threads read into pinned
slabs, uploads and products overlap on two streams, sums are formed in float64, one Reduce adds
them. No checksum, no proof, no file per shard. Rank 0 prints one JSON line: seconds of the window,
in which each rank has its device and its memory already, and an element of the sum.
"""

import json
import queue
import sys
import threading
import time
from pathlib import Path

import cupy as cp
import cupyx
import numpy as np
from mpi4py import MPI

READERS, SLABS = 4, 6

comm = MPI.COMM_WORLD
cp.cuda.Device(comm.rank % cp.cuda.runtime.getDeviceCount()).use()
files = sorted(Path(sys.argv[1]).glob("*.npy"))
mapped = np.load(files[0], mmap_mode="r")
shape, offset = mapped.shape, mapped.offset

free, full = queue.Queue(), queue.Queue()
for _ in range(SLABS):
    free.put(cupyx.empty_pinned(shape, "float32"))
mine = files[comm.rank :: comm.size]
todo = queue.SimpleQueue()
for path in mine:
    todo.put(path)


def read() -> None:
    """Read files into free slabs until none is left."""
    while True:
        try:
            path = todo.get_nowait()
        except queue.Empty:
            return
        slab = free.get()
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            file.readinto(memoryview(slab).cast("B"))
        full.put(slab)


total = cp.zeros(shape, "float64")
factors = [cp.empty(shape, "float32") for _ in range(2)]
product = cp.matmul(factors[0], factors[0])  # loads cuBLAS
total += product
total[...] = 0
copying, computing = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
used = [computing.record(), computing.record()]
cp.cuda.Device().synchronize()

comm.Barrier()
began = time.perf_counter()
for _ in range(READERS):
    threading.Thread(target=read, daemon=True).start()
for number in range(len(mine)):
    slab, factor = full.get(), factors[number % 2]
    copying.wait_event(used[number % 2])
    factor.set(slab, stream=copying)
    arrived = copying.record()
    computing.wait_event(arrived)
    with computing:
        cp.matmul(factor, factor, out=product)
        total += product
    used[number % 2] = computing.record()
    arrived.synchronize()
    free.put(slab)
computing.synchronize()
part = total.get()
result = np.zeros_like(part) if comm.rank == 0 else None
comm.Reduce(part, result)
comm.Barrier()
seconds = time.perf_counter() - began
if comm.rank == 0:
    sys.stdout.write(json.dumps({"seconds": seconds, "corner": float(result[0, 0])}) + "\n")
