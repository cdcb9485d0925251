"""The synthetic stack: input for a first run, and for benchmarks."""

import time
from typing import Any

import numpy as np

from shardwise.files.commit import commit
from shardwise.files.npy import StackWriter
from shardwise.plan.plan import Plan
from shardwise.records import receipts

INTEGER_LIMIT = 9


def write(plan: Plan) -> None:
    """Write ``input.npy`` and its receipt: standard normal numbers, or small integers, by the seed.

    Each matrix is drawn from a generator of its own, so its content depends on its index and the
    seed alone.
    """
    started = time.time()
    recipe: dict[str, Any] = plan.facts["synthetic"]
    count, dim, dtype = recipe["matrices"], recipe["dim"], np.dtype(recipe["dtype"])
    path, receipt = plan.results.synthetic, plan.results.synthetic_receipt
    with commit(path, sweep=True, receipt=receipt) as file:
        writer = StackWriter(file, (count, dim, dim), dtype)
        for i in range(count):
            writer.append(matrix(recipe["seed"], i, dim, dtype))
        checksum = writer.checksum()
    facts = receipts.file_facts(
        path, (count, dim, dim), dtype.name, checksum, writer.row_bytes, writer.piece_bytes
    )
    provenance = receipts.provenance("synthesize", started)
    receipts.write(receipt, {"synthetic": recipe, "file": facts, **provenance})


def matrix(seed: int, index: int, dim: int, dtype: np.dtype) -> np.ndarray:
    """Matrix ``index`` of the synthetic stack, shape ``(dim, dim)``."""
    random = np.random.default_rng([seed, index])
    if dtype.kind in "iu":
        return random.integers(-INTEGER_LIMIT, INTEGER_LIMIT, (dim, dim), endpoint=True).astype(
            dtype
        )
    real = random.standard_normal((dim, dim))
    if dtype.kind == "c":
        return (real + 1j * random.standard_normal((dim, dim))).astype(dtype)
    return real.astype(dtype)
