"""When simulated workers of different speed end, under our dealer and under what people use.

Prints the table of docs/dispatch.md: the time to the last shard's end, over the lower bound. A cell
is the mean and the worst over many drawn stacks. No shard is computed; seconds are simulated.
"""

import heapq
import itertools
import math
import random
import statistics
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import harness
from shardwise.dispatch.dealer import Dealer

SPEEDS = (1, 2, 4)
SHARDS = (5, 10, 20, 50)
SPREAD = 0.5
"""The standard deviation of the logarithm of a skewed cost: one in 20 takes over 2.3 times more."""

AHEAD = 0.5
"""The part of a shard's time after which its worker has read it and asks for the next."""


class InOrder:
    """Whoever is free takes the next shard of the list: a pool's `map`, or an array of jobs."""

    def __init__(self, costs: Mapping[str, float]) -> None:
        self._waiting = deque(costs)

    def join(self, worker: int) -> None:
        """Every worker is as good as another."""

    def ask(self, worker: int, now: float) -> str | None:
        """The first shard that waits."""
        return self._waiting.popleft() if self._waiting else None

    def done(self, worker: int, shard: str, now: float) -> None:
        """Nothing is learned."""


def makespan(
    dealer: Dealer | InOrder,
    costs: Mapping[str, float],
    speeds: Sequence[float],
    ahead: float | None = None,
) -> float:
    """When the last shard ends, from the start of all workers at 0.

    Parameters
    ----------
    costs
        What each shard truly takes; the dealer may have been told otherwise.
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
    has: list[deque[str]] = [deque() for _ in speeds]
    asking, left, now = set(range(len(speeds))), set(costs), 0.0

    def begin(worker: int) -> None:
        seconds = costs[has[worker][0]] / speeds[worker]
        if ahead is not None:
            heapq.heappush(events, (now + ahead * seconds, next(turns), worker, False))
        heapq.heappush(events, (now + seconds, next(turns), worker, True))

    for worker in asking:
        dealer.join(worker)
    while True:
        for worker in sorted(asking):
            shard = dealer.ask(worker, now)
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
            dealer.done(worker, has[worker].popleft(), now)
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


def best_of_equal(shards: int, speeds: Sequence[float]) -> float:
    """The shortest possible time for shards of cost 1: each goes where it ends first."""
    ends = [(1 / speed, speed) for speed in speeds]
    heapq.heapify(ends)
    for _ in range(shards - 1):
        end, speed = ends[0]
        heapq.heapreplace(ends, (end + 1 / speed, speed))
    return ends[0][0]


def drawn(kind: str, shards: int, seed: int) -> tuple[dict[str, float], dict[str, float]]:
    """The true costs of shards, and those that the dealer is told."""
    names = [f"{shard:05}" for shard in range(shards)]
    if kind == "equal":
        return dict.fromkeys(names, 1.0), dict.fromkeys(names, 1.0)
    numbers = random.Random(seed)
    true = {name: numbers.lognormvariate(0, SPREAD) for name in names}
    return true, true if kind == "skewed, known" else dict.fromkeys(names, 1.0)


def ratios(kind: str, shards: int, seed: int) -> Iterator[float]:
    """What each way takes of the lower bound: ours, ours asking ahead, in order, evenly split."""
    true, told = drawn(kind, shards, seed)
    least = lower_bound(list(true.values()), SPEEDS)
    yield makespan(Dealer(told), true, SPEEDS) / least
    yield makespan(Dealer(told), true, SPEEDS, AHEAD) / least
    yield makespan(InOrder(told), true, SPEEDS) / least
    yield even_split(list(true.values()), SPEEDS) / least


def main() -> None:
    """Simulate all and print the table."""
    parser = harness.parser(__doc__)
    parser.add_argument("--stacks", type=int, default=1000, help="drawn for each row")
    options = parser.parse_args()
    stacks = 3 if options.tiny else options.stacks
    columns = ["costs", "shards per device", "shardwise", "shardwise, asking ahead"]
    columns += ["in order, whoever is free", "even split beforehand"]
    table = harness.Table("makespan", columns, options.json)
    for kind in ("equal", "skewed, known", "skewed, hidden"):
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
