"""What a run says of its folder: what it would read and write, what other configs have left."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from shardwise.errors import ShardwiseError
from shardwise.files.paths import freed_by, list_names
from shardwise.plan import plan as plan_file
from shardwise.plan.plan import Plan
from shardwise.plan.problem import ITEM_BYTES, statistic_dtype
from shardwise.records.store import Store
from shardwise.units import human_bytes


def amounts(plan: Plan, shards: Sequence[str]) -> tuple[int, int]:
    """Bytes that computing some shards reads, of A and of B, and bytes that it writes."""
    problem, rows = plan.problem, [plan.shards[shard] for shard in shards]
    factors = len(rows) if problem.shared_right else sum(len(row.run) for row in rows)
    read = sum(row.bytes for row in rows) + factors * problem.right_bytes
    return read, sum(row.product_bytes for row in rows)


def quote(plan: Plan, reduce: Mapping[str, Any], shards: list[str]) -> str:
    """The quote of a run that computes some shards; ``reduce`` is that section of the config."""
    problem, rows, stack = plan.problem, plan.shards.values(), plan.synthetic_receipt
    lacking = set(Store(plan).missing_copies()) if plan.settings.materialize else set()
    copied = sum(plan.shards[shard].bytes for shard in shards if shard in lacking)
    factors, products = amounts(plan, shards)
    results = 0
    for name in problem.results(reduce["statistics"]):
        item = ITEM_BYTES[statistic_dtype(name, problem.product_dtype)]
        results += math.prod(problem.statistic_shape(name)) * item
    new = plan.written["input"] if stack and not stack.exists() else 0
    read = human_bytes(copied + factors + plan.written["products"])
    written = human_bytes(new + copied + products + results)
    memory = human_bytes(max(row.memory for row in rows))
    if device := max(row.device_memory for row in rows):
        memory += f", and {human_bytes(device)} of a GPU"
    return f"a run reads {read} and writes {written}; memory per task: {memory}"


def advice(plan: Plan) -> str:
    """What to say of other configs if their files take over a tenth of the plan's own bytes."""
    if len(plan.shards) > 100_000:  # whose folders take seconds to list
        return ""
    own = plan.written["shards"] + plan.written["products"]
    sizes = [*map(freed_by, Store(plan).others())]
    words = f"{len(sizes)} files of other configs or inputs take {human_bytes(sum(sizes))}"
    return f"{words}; shardwise clean lists them" if sum(sizes) > own / 10 else ""


def replaced(plan: Plan) -> str:
    """What to say before a run replaces the finished results of another config."""
    with suppress(ShardwiseError):  # there is no plan, or none that can be used
        there = plan_file.load_facts(plan.results.plan)
        if list_names(plan.results.done) and there.config_digest != plan.facts.config_digest:
            return (
                f"{plan.results.root} holds the finished results of another config. Their sum and "
                "page will be replaced, their products stay; to keep all, set results to another "
                "folder"
            )
    return ""
