"""The device's own numbers of a shard beside those that the CPU took when it was read."""

from dataclasses import replace
from typing import Any

from shardwise.errors import WrongInput
from shardwise.multiply.batch import ShardChecks
from shardwise.multiply.blame import SUSPECT
from shardwise.multiply.copy import how_to_repair
from shardwise.multiply.reading import Reading
from shardwise.numerics import end_to_end
from shardwise.plan.plan import Plan, Shard
from shardwise.records.witness import ShardWitness


def compare(plan: Plan, shard: Shard, reading: Reading, checks: ShardChecks) -> dict[str, Any]:
    """What the receipt says of the end-to-end proof, once the device's numbers fit the CPU's.

    Raises
    ------
    WrongInput
        Where they do not: the device has multiplied other matrices than were read.
    """
    total = checks.witness()
    if isinstance(total, str):
        return {"witness": None, "no_witness": total}
    if reading.reference is not None:
        host = _with_sample(plan, shard, reading, checks)
    elif reading.copy is not None and reading.copy.reference is not None:
        host = _with_copy(plan, shard, total, reading.copy.reference, checks.tally.rows)
    else:
        host = "none"
    return {"witness": replace(total, host=host).to_json()}


def _with_copy(plan: Plan, shard: Shard, total: ShardWitness, copied: Any, rows: int) -> str:
    """Compare the number of all matrices; for how many matrices that is."""
    if end_to_end.differ(plan.problem, total.reference, copied, total.mass, rows):
        raise WrongInput(
            f"shard {shard.shard}: the matrices that the device has multiplied are not those that "
            f"were copied; nothing was written. {SUSPECT}. If this comes again on another device, "
            f"the copy or its receipt is wrong: {how_to_repair(plan, shard)}"
        )
    return "all"


def _with_sample(plan: Plan, shard: Shard, reading: Reading, checks: ShardChecks) -> str:
    """Compare the numbers of some matrices; for how many of how many that is."""
    reference, tally = reading.reference, checks.tally
    for i, number in tally.references.items():
        sampled = reference.values[i // reference.every]
        if end_to_end.differ(plan.problem, number, sampled, tally.masses[i], 1):
            raise WrongInput(
                f"shard {shard.shard}: the device has multiplied another matrix "
                f"{shard.start + i} than was read; nothing was written. {SUSPECT}"
            )
    count, sampled_count = shard.stop - shard.start, reference.finite()
    if sampled_count == count:
        return "all"
    return f"{sampled_count} of {count}" if sampled_count else "none"
