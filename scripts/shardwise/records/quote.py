"""What a run would read, write and need: for all of its plan that the results folder lacks."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwise.plan.plan import Plan
from shardwise.plan.problem import ITEM_BYTES, statistic_dtype, statistic_shape
from shardwise.records import store
from shardwise.units import count, human_bytes


@dataclass(frozen=True)
class Quote:
    """The shards to compute, the copies to make first, and the bytes of both and of the reduce.

    ``work`` counts the bytes that the shards' tasks read and write, ``memory`` what one task needs.
    """

    shards: list[str]
    copies: list[str]
    work: int
    read: dict[str, int]
    written: dict[str, int]
    memory: str

    def line(self, jobs: int) -> str:
        """The quote in one line, for the start of a run of this many jobs."""
        read, written = (human_bytes(sum(part.values())) for part in (self.read, self.written))
        return (
            f"{count(jobs, 'job')} read {read} and write {written}; memory per task: {self.memory}"
        )


def quote(plan: Plan, reduce: Mapping[str, Any], shards: list[str]) -> Quote:
    """The quote of a run that computes some shards; ``reduce`` is that section of the config."""
    problem, rows, stack = plan.problem, plan.shards.values(), plan.synthetic_receipt
    lacking = set(store.Store(plan).missing_copies()) if plan.settings.materialize else set()
    copies = [shard for shard in shards if shard in lacking]
    copied = sum(plan.shards[shard].bytes for shard in copies)
    factors, products = store.amounts(plan, shards)
    results = sum(
        math.prod(statistic_shape(name, problem))
        * ITEM_BYTES[statistic_dtype(name, problem.product_dtype)]
        for name in problem.results(reduce["statistics"])
    )
    new = plan.written["input"] if stack and not stack.exists() else 0
    memory = human_bytes(max(row.memory for row in rows))
    device = max(row.device_memory for row in rows)
    return Quote(
        shards, copies, factors + products,
        {"to copy": copied, "for products": factors, "for the sum": plan.written["products"]},
        {"input": new, "copies": copied, "products": products, "results": results},
        memory + f", and {human_bytes(device)} of a GPU" * bool(device),
    )  # fmt: skip
