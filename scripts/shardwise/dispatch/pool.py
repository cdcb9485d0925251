"""All devices of one node: a worker process each, shards handed out as workers become free.

`Leader` decides, and knows neither processes nor pipes: events go in, orders come out. The pool of
one node and the ranks of several (`mpi.py`) both follow it. Standard library only.
"""

import logging

from shardwise import host
from shardwise.devices import choose, quarantine
from shardwise.dispatch.crew import Crew
from shardwise.dispatch.leader import Leader, lead
from shardwise.dispatch.tally import DEFAULT_RETRIES, Tally, holding
from shardwise.plan.memory import REDUCE_LIMIT_SECONDS
from shardwise.plan.plan import Plan
from shardwise.records.missing import describe, list_missing

log = logging.getLogger(__name__)


def run(
    plan: Plan,
    retries: int = DEFAULT_RETRIES,
    memory: int | None = None,
    wait: float | None = None,
    most: int = 0,
    limit: float = REDUCE_LIMIT_SECONDS,
) -> None:
    """Compute all shards that are missing, on all devices of this node.

    Parameters
    ----------
    retries
        Tries after the first of one shard.
    memory
        Host bytes that all workers may take together, or None for what the plan says of each.
    wait
        Seconds that a worker waits for a free device, as :func:`shardwise.devices.choose.take` has
        it.
    most
        Devices to use at most; 0: all that there are for this job.
    limit
        Seconds after which a worker that hangs is killed, as `hangs` defines it.

    Raises
    ------
    ShardwiseError
        Where a shard is not whole in the end, after the others: see `Tally.finish`.
    TryAgain
        Where another dispatcher works on these results, or no device is left.
    """
    with holding(plan.results):
        shards = list_missing(plan)
        log.info("%s", describe(plan, shards))
        if not shards:
            return
        tally = Tally(plan, shards, retries)
        leader = Leader(plan, tally)
        backend, barred = plan.settings.backend, quarantine.barred(plan.results)
        for said in choose.left_out(backend, barred):
            tally.note(f"left out, as in quarantine: {said}")
        here = choose.workers(backend, barred)
        workers = min(here, most or here, len(shards))
        own = memory and memory // workers
        with Crew(plan.results.plan, workers, own, wait, None, plan.function, limit) as crew:
            for worker in crew.living:
                leader.expect(worker, host.node())
            lead(crew, leader, tally)
        leader.finish()
