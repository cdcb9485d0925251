"""All devices of one node: a worker process each, shards handed out as workers become free."""

import logging

from shardwise import host
from shardwise.devices import choose
from shardwise.dispatch.crew import Crew
from shardwise.dispatch.events import Limits
from shardwise.dispatch.leader import Leader, lead
from shardwise.dispatch.run_time import of_this_job
from shardwise.dispatch.tally import Tally, holding
from shardwise.plan.plan import Plan
from shardwise.records import failures
from shardwise.records.store import Store, describe

log = logging.getLogger(__name__)


def run(plan: Plan, retries: int, limits: Limits, most: int = 0) -> None:
    """Compute all shards that are missing, on all devices of this node.

    Parameters
    ----------
    retries
        Tries after the first of one shard.
    limits
        The memory is that of all workers together.
    most
        Devices to use at most; 0: all that there are for this job.

    Raises
    ------
    ShardwiseError
        Where a shard is not whole in the end, after the others: see `Tally.finish`.
    TryAgain
        Where another dispatcher works on these results, or no device is left.
    """
    with holding(plan.results):
        shards = Store(plan).missing()
        log.info("%s", describe(plan, shards))
        if not shards:
            return
        tally = Tally(plan, shards, retries)
        leader = Leader(plan, tally, run_time=of_this_job(limits.run_time))
        usable = choose.workers(plan.settings.backend, failures.barred(plan.results))
        workers = min(usable, most or usable, len(shards))
        limits = limits.shared(workers)
        for worker in range(workers):
            leader.expect(worker, host.node())
        with Crew(plan.results.plan, workers, limits, function=plan.function) as crew:
            lead(crew, leader, tally)
        leader.finish()
