"""One shard through one device, from its matrices to its receipt."""

import logging

from shardwise.multiply.session import Session
from shardwise.plan.plan import Plan

log = logging.getLogger(__name__)


def run_shard(
    plan: Plan, shard_id: str, memory: int | None = None, wait: float | None = None
) -> None:
    """Compute the products of one shard, or their sum, and commit them with a receipt.

    Parameters and errors are those of :class:`Session` and its methods.
    """
    shard = plan.shard(shard_id)
    session = Session(plan, shard.device_memory, memory, wait)
    session.finish(session.begin(shard_id))
