"""Writes the synthetic stack, with its receipt."""

import time

import numpy as np

from shardwise.files.commit import commit
from shardwise.files.npy import StackWriter
from shardwise.plan.plan import Plan
from shardwise.plan.stack import synthetic_matrix
from shardwise.records import receipts


def write(plan: Plan) -> None:
    """Write ``input.npy`` and its receipt: standard normal numbers, or small integers, by the seed.

    Each matrix is drawn from its own generator, so its content depends only on its index and the
    seed.
    """
    started = time.time()
    recipe = plan.facts.synthetic
    assert recipe is not None  # callers check that the plan asks for a synthetic stack
    count, dim, dtype = recipe["matrices"], recipe["dim"], np.dtype(recipe["dtype"])
    path, receipt = plan.results.synthetic, plan.synthetic_receipt
    assert receipt is not None
    for other in plan.results.root.glob(f"input-{'[0-9a-f]' * 12}.json"):
        other.unlink()  # the stack that it vouches for is replaced
    with commit(path, sweep=True, receipt=receipt) as file:
        writer = StackWriter(file, (count, dim, dim), dtype)
        for i in range(count):
            writer.append(synthetic_matrix(recipe["seed"], i, dim, dtype))
        checksum = writer.hashed.hexdigest()
    facts = receipts.describe_file(path, writer, checksum)
    provenance = receipts.describe_origin("synthesize", started)
    receipts.write(receipt, {"synthetic": recipe, "file": facts, **provenance})
