"""A shard on disk: the matrices of one row of the plan as a file of their own."""

import time

import numpy as np

from shardwise import plan as counts
from shardwise import receipts
from shardwise.arrays import StackWriter, commit
from shardwise.planfile import Plan, load_sources
from shardwise.sources import StackReader


def materialize(plan: Plan, shard_id: str) -> None:
    """Copy one shard's matrices into ``shards/{shard}.npy`` and commit its receipt.

    Raises
    ------
    IntegrityError
        Where an input file is not the one that was planned for.
    """
    started = time.time()
    shard, problem = plan.shard(shard_id), plan.problem
    reader = StackReader(load_sources(plan), problem.left, plan.dtype)  # type: ignore[arg-type]
    shape = (shard.stop - shard.start, *problem.left)
    step = max(1, counts.SLAB_BYTES // problem.matrix_bytes)
    path = plan.results.shard(shard_id)
    with commit(path, sweep=True) as file:
        writer = StackWriter(file, shape, np.dtype(plan.dtype))
        for low in range(shard.start, shard.stop, step):
            writer.append(reader.read(low, min(low + step, shard.stop)))
        checksum, data_checksum = writer.checksums()
    receipt = {
        "shard": shard_id,
        "start": shard.start,
        "stop": shard.stop,
        "matrices": shard.matrices,
        "file": receipts.file_facts(path, shape, plan.dtype, checksum),
        "data_checksum": data_checksum,
        **receipts.provenance("shard", started, {"numpy": np.__version__}),
    }
    receipts.write(plan.results.shard_receipt(shard_id), receipt)
