"""When simulated workers of different speed end, by our claims and by what people use.

Prints the table of docs/dispatch.md: the time to the last shard's end, over the lower bound. A cell
is the mean and the worst over many drawn stacks. No shard is computed; seconds are simulated.
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
SHARDS = (5, 10, 20, 50)
SPREAD = 0.5
"""The standard deviation of the logarithm of a skewed cost: one in 20 takes over 2.3 times more."""

AHEAD = 0.5
"""The part of a shard's time after which its worker has read it and asks for the next."""


class InOrder:
    """Whoever is free takes the next shard of the list: a pool's `map`, or an array of jobs."""

    def __init__(self, shards: int, workers: int) -> None:
        self._waiting = iter(range(shards))

    def ask(self, worker: int) -> int | None:
        """The first shard that waits."""
        return next(self._waiting, None)


class InBlocks:
    """Whoever is free claims the next block of our claims."""

    def __init__(self, shards: int, workers: int) -> None:
        self._blocks = iter(Round("", range(shards), workers, 1).blocks())
        self._own: list[deque[int]] = [deque() for _ in range(workers)]

    def ask(self, worker: int) -> int | None:
        """The next shard of the worker's block."""
        if not self._own[worker]:
            self._own[worker].extend(next(self._blocks, ()))
        return self._own[worker].popleft() if self._own[worker] else None


def makespan(
    dealer: InBlocks | InOrder,
    costs: Sequence[float],
    speeds: Sequence[float],
    ahead: float | None = None,
) -> float:
    """When the last shard ends, from the start of all workers at 0.

    Parameters
    ----------
    costs
        What each shard takes, which no worker knows.
    speeds
        Cost per second of each worker.
    ahead
        The part of a shard after which its worker asks for the next; None: at its end.

    Raises
    ------
    KeyError
        Where a shard is dealt twice.
    RuntimeError
        Where one is never dealt, although all workers ask.
    """
    events: list[tuple[float, int, int, bool]] = []
    turns = itertools.count()
    has: list[deque[int]] = [deque() for _ in speeds]
    asking, left, now = set(range(len(speeds))), set(range(len(costs))), 0.0

    def begin(worker: int) -> None:
        seconds = costs[has[worker][0]] / speeds[worker]
        if ahead is not None:
            heapq.heappush(events, (now + ahead * seconds, next(turns), worker, False))
        heapq.heappush(events, (now + seconds, next(turns), worker, True))

    while True:
        for worker in sorted(asking):
            shard = dealer.ask(worker)
            if shard is not None:
                asking.remove(worker)
                left.remove(shard)
                has[worker].append(shard)
                if len(has[worker]) == 1:
                    begin(worker)
        if not events:
            break
        now, _, worker, ended = heapq.heappop(events)
        if ended:
            has[worker].popleft()
            if has[worker]:
                begin(worker)
        if not ended or not has[worker]:
            asking.add(worker)
    if left:
        raise RuntimeError(f"{len(left)} of {len(costs)} shards were never dealt")
    return now


def even_split(costs: Sequence[float], speeds: Sequence[float]) -> float:
    """When the last worker ends, where each gets as many shards as any other, all beforehand."""
    cuts = [len(costs) * place // len(speeds) for place in range(len(speeds) + 1)]
    parts = (math.fsum(costs[low:high]) for low, high in itertools.pairwise(cuts))
    return max(part / speed for part, speed in zip(parts, speeds, strict=True))


def lower_bound(costs: Sequence[float], speeds: Sequence[float]) -> float:
    """What no schedule beats: nobody idles, and the fastest worker takes the largest shard."""
    return max(math.fsum(costs) / math.fsum(speeds), max(costs) / max(speeds))


def drawn(kind: str, shards: int, seed: int) -> list[float]:
    """The costs of shards."""
    numbers = random.Random(seed)
    return [1.0 if kind == "equal" else numbers.lognormvariate(0, SPREAD) for _ in range(shards)]


def ratios(kind: str, shards: int, seed: int) -> Iterator[float]:
    """What each way takes of the lower bound: ours, ours asking ahead, in order, evenly split."""
    costs, workers = drawn(kind, shards, seed), len(SPEEDS)
    least = lower_bound(costs, SPEEDS)
    yield makespan(InBlocks(shards, workers), costs, SPEEDS) / least
    yield makespan(InBlocks(shards, workers), costs, SPEEDS, AHEAD) / least
    yield makespan(InOrder(shards, workers), costs, SPEEDS) / least
    yield even_split(costs, SPEEDS) / least


def main() -> None:
    """Simulate all and print the table."""
    parser = harness.parser(__doc__)
    parser.add_argument("--stacks", type=int, default=1000, help="drawn for each row")
    options = parser.parse_args()
    stacks = 3 if options.tiny else options.stacks
    columns = ["costs", "shards per device", "shardwise", "shardwise, asking ahead"]
    columns += ["in order, whoever is free", "even split beforehand"]
    table = harness.Table("makespan", columns, options.json)
    for kind in ("equal", "skewed"):
        for each in SHARDS:
            seeds = range(1 if kind == "equal" else stacks)
            found = [list(ratios(kind, each * len(SPEEDS), seed)) for seed in seeds]
            cells = [_cell(column) for column in zip(*found, strict=True)]
            table.row([kind, each, *cells], {"ratios": found})
    table.note(f"{stacks} stacks of skewed costs a row: the mean, and the worst in brackets.")
    table.end()


def _cell(found: Sequence[float]) -> str:
    """The mean, and the worst where there are several."""
    mean = f"{statistics.fmean(found):.2f}"
    return mean if len(found) == 1 else f"{mean} ({max(found):.2f})"


if __name__ == "__main__":
    main()
