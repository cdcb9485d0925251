"""When simulated workers of different speed end, by our claims and by an even split.

Prints the figures of docs/dispatch.md: the time to the last shard's end, over the lower bound. A
cell is the mean and the worst over many drawn stacks. No shard is computed; seconds are simulated.
"""

import heapq
import itertools
import math
import random
import statistics
from collections import deque
from collections.abc import Iterator, Sequence

import harness
from shardwise.work.claims import Round

SPEEDS = (1, 2, 4)
EACH = 20  # shards per device
SPREAD = 0.5
"""The standard deviation of the logarithm of a skewed cost: one in 20 takes over 2.3 times more."""


def by_claims(costs: Sequence[float]) -> float:
    """When the last worker ends, where whoever is free claims the next block of our claims."""
    blocks = iter(Round("", range(len(costs)), len(SPEEDS), 1).blocks())
    free = [(0.0, worker, deque[int]()) for worker in range(len(SPEEDS))]
    last, done = 0.0, set[int]()
    while free:
        now, worker, own = heapq.heappop(free)
        own.extend(() if own else next(blocks, ()))
        if own:
            shard = own.popleft()
            done.add(shard)
            heapq.heappush(free, (now + costs[shard] / SPEEDS[worker], worker, own))
        last = max(last, now)
    assert done == set(range(len(costs)))
    return last


def even_split(costs: Sequence[float]) -> float:
    """The same, where each gets as many shards as any other, all beforehand."""
    cuts = [len(costs) * place // len(SPEEDS) for place in range(len(SPEEDS) + 1)]
    parts = (math.fsum(costs[low:high]) for low, high in itertools.pairwise(cuts))
    return max(part / speed for part, speed in zip(parts, SPEEDS, strict=True))


def ratios(skewed: bool, seed: int) -> Iterator[float]:
    """What both take of what no schedule beats.

    There nobody idles, and the fastest worker takes the largest shard.
    """
    draw, shards = random.Random(seed).lognormvariate, range(EACH * len(SPEEDS))
    costs = [draw(0, SPREAD) if skewed else 1.0 for _ in shards]
    least = max(math.fsum(costs) / math.fsum(SPEEDS), max(costs) / max(SPEEDS))
    yield by_claims(costs) / least
    yield even_split(costs) / least


def main() -> None:
    """Simulate all and print the table."""
    parser = harness.parser(__doc__)
    parser.add_argument("--stacks", type=int, default=1000, help="of skewed costs, drawn")
    options = parser.parse_args()
    table = harness.Table(["costs", "stacks", "shardwise: mean", "worst", "even split", "worst"])
    for name, stacks in (("equal", 1), ("skewed", 3 if options.tiny else options.stacks)):
        columns = zip(*(ratios(name == "skewed", seed) for seed in range(stacks)), strict=True)
        cells = [f(column) for column in columns for f in (statistics.fmean, max)]
        table.row([name, stacks, *cells])
    table.end()


if __name__ == "__main__":
    main()
