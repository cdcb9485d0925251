"""When simulated workers of different speed end, by our claims and by an even split.

Prints the figures of docs/dispatch.md: the time to the last shard's end, over a bound that no
schedule beats: there nobody idles, and the fastest worker takes the largest shard. A cell is the
mean and the worst over many drawn stacks. No shard is computed; seconds are simulated.
"""

import heapq
import statistics
from collections.abc import Sequence

import harness
import numpy as np
from shardwise.work.claims import Round

SPEEDS = (1, 2, 4)
SHARDS = 20 * len(SPEEDS)
SPREAD = 0.5
"""The standard deviation of the logarithm of a skewed cost: one in 20 takes over 2.3 times more."""


def by_claims(costs: Sequence[float]) -> float:
    """When the last worker ends, where whoever is free claims the next block of our claims."""
    blocks = iter(Round("", range(len(costs)), len(SPEEDS), 1).blocks())
    free = [(0.0, worker, list[int]()) for worker in range(len(SPEEDS))]
    last = 0.0
    while free:
        now, worker, own = heapq.heappop(free)
        if own := own or list(next(blocks, ())):
            end = now + costs[own[0]] / SPEEDS[worker]
            heapq.heappush(free, (end, worker, own[1:]))
        last = max(last, now)
    return last


def even_split(costs: Sequence[float]) -> float:
    """The same, where each gets as many shards as any other, all beforehand."""
    return max(np.sum(np.split(np.array(costs), len(SPEEDS)), axis=1) / SPEEDS)


def main() -> None:
    """Simulate all and print the table."""
    options = harness.options(__doc__, {"stacks": 3}, stacks=1000)
    harness.heading("costs", "stacks", "shardwise: mean", "worst", "even split", "worst")
    for name, stacks, spread in (("equal", 1, 0), ("skewed", options.stacks, SPREAD)):
        drawn = np.random.default_rng(0).lognormal(0, spread, (stacks, SHARDS)).tolist()
        least = [max(sum(costs) / sum(SPEEDS), max(costs) / max(SPEEDS)) for costs in drawn]
        found = []
        for schedule in (by_claims, even_split):
            ratios = [schedule(own) / bound for own, bound in zip(drawn, least, strict=True)]
            found += [statistics.fmean(ratios), float(max(ratios))]
        harness.row(name, stacks, *found)


if __name__ == "__main__":
    main()
