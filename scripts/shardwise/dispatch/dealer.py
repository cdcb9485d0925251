"""Which shard next, for which worker: workers of different speed end together.

Shards are dealt one by one, as workers ask, the largest first (list scheduling in the order LPT:
R. L. Graham, SIAM J. Appl. Math. 17, 1969). A shard is held back from a worker where the others are
sure to end all that waits before this worker would end that one (earliest completion, as in
T. Gonzalez, O. H. Ibarra and S. Sahni, SIAM J. Comput. 6, 1977). So n equal shards on m workers of
known speeds end within (m - 1) / n of the lower bound, and any shards one shard on the slowest
worker after it.
"""

import bisect
import math
from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field

_FADES = 0.8  # what is left of earlier shards in a worker's speed, with each more that it ends
_SURE = 1 - 1e-9  # rounding must not make two equal workers wait for each other


@dataclass
class _Workload:
    """The shards that a worker has, in its order, since when, and what it has ended before."""

    shards: deque[str] = field(default_factory=deque)
    since: float | None = None
    cost: float = 0.0
    seconds: float = 0.0

    @property
    def speed(self) -> float | None:
        """Cost per second; None until a shard has ended."""
        return self.cost / self.seconds if self.seconds > 0 else None


class Dealer:
    """Deals shards to workers, which may join and leave at any time.

    A worker may ask for its next shard while it computes: that is granted to one that is alone, and
    to others once their speed is known, while so much waits that nobody runs short.

    Parameters
    ----------
    costs
        What each shard takes, in any unit, such as bytes. Where costs are not true, workers look
        faster or slower than they are, and the end is a bit later.
    """

    def __init__(self, costs: Mapping[str, float]) -> None:
        self._costs = {shard: max(float(cost), 1e-300) for shard, cost in costs.items()}
        self._places = {shard: place for place, shard in enumerate(costs)}
        self._waiting = sorted(costs, key=self._order)  # the next is the last one here
        self._behind: deque[str] = deque()
        self._cost = math.fsum(self._costs.values())  # of all that waits
        self._workers: dict[Hashable, _Workload] = {}
        self._known, self._speeds = 0, 0.0  # workers of known speed, and their sum
        self._away: dict[str, _Workload] = {}  # who has, or had, each shard that was dealt

    @property
    def empty(self) -> bool:
        """Whether no shard waits; those that were dealt may still come back."""
        return not self._waiting and not self._behind

    def join(self, worker: Hashable) -> None:
        """Take a worker in, best as soon as it is started."""
        if worker in self._workers:
            raise ValueError(f"worker {worker} has joined already")
        self._workers[worker] = _Workload()

    def leave(self, worker: Hashable) -> list[str]:
        """Forget a worker; each of the shards that it had needs an `again` or a `drop`."""
        load = self._workers.pop(worker)
        self._count(load, -1)
        return list(load.shards)

    def ask(self, worker: Hashable, now: float) -> str | None:
        """The next shard of a worker, or None if nothing is for it now.

        Ask again, for every worker that wants a shard, after each `done`, `again`, `leave` and,
        as a worker may hang, every now and then.
        """
        if self.empty:
            return None
        load = self._workers[worker]
        shard = self._waiting[-1] if self._waiting else self._behind[0]
        if load.shards and not self._may_ask_ahead(load, shard, now):
            return None
        if not load.shards and self._held_back(load, shard, now):
            return None
        (self._waiting.pop if self._waiting else self._behind.popleft)()
        self._cost -= self._costs[shard]
        if not load.shards:
            load.since = now
        load.shards.append(shard)
        self._away[shard] = load
        return shard

    def done(self, worker: Hashable, shard: str, now: float) -> None:
        """Note that a worker has ended a shard, and learn its speed from that."""
        load = self._workers[worker]
        del self._away[shard]
        load.shards.remove(shard)
        if load.since is not None:
            self._count(load, -1)
            load.cost = _FADES * load.cost + self._costs[shard]
            load.seconds = _FADES * load.seconds + now - load.since
            self._count(load, 1)
        load.since = now

    def again(self, shard: str, last: bool = True) -> None:
        """Let a shard that was dealt wait once more: behind all others, or in its place."""
        self._take_back(shard)
        self._cost += self._costs[shard]
        if last:
            self._behind.append(shard)
        else:
            bisect.insort(self._waiting, shard, key=self._order)

    def drop(self, shard: str) -> None:
        """Forget a shard that was dealt: it has failed for good."""
        self._take_back(shard)

    def _order(self, shard: str) -> tuple[float, int]:
        """Large shards last, and equal ones in the order of the plan, from its end."""
        return self._costs[shard], -self._places[shard]

    def _count(self, load: _Workload, sign: int) -> None:
        """Add a worker's speed to the sum, or take it off."""
        if load.speed is not None:
            self._known += sign
            self._speeds += sign * load.speed

    def _take_back(self, shard: str) -> None:
        load = self._away.pop(shard)
        if load.shards and load.shards[0] == shard:
            load.since = None  # of the next one, nobody has seen the start
        load.shards.remove(shard)

    def _may_ask_ahead(self, load: _Workload, shard: str, now: float) -> bool:
        """Whether this worker would have ended one more before half of what waits is done."""
        if len(self._workers) == 1:
            return True  # nobody else could run short
        if load.speed is None:
            return False
        speeds = self._speeds + (len(self._workers) - self._known) * load.speed
        # Half, as costs may be wrong: a shard that is promised too early waits for its worker.
        return self._end(load, shard, now) <= now + self._cost / speeds / 2

    def _held_back(self, load: _Workload, shard: str, now: float) -> bool:
        """Whether the others are sure to end all that waits before this worker ends this shard."""
        if load.speed is None:
            return False
        end = self._end(load, shard, now)
        if (end - now) * self._speeds <= self._cost:
            return False  # all of them together would take longer: no need to look at each
        # Each shard counts as large as the largest, and whose speed is not known as nobody.
        largest = max(self._costs[waiting] for waiting in (shard, *self._behind))
        missing = len(self._waiting) + len(self._behind)
        for other in self._known_others(load):
            seconds = end - self._free(other, now)
            missing -= max(0, math.floor(_SURE * seconds * other.speed / largest))
            if missing <= 0:
                return True
        return False

    def _known_others(self, load: _Workload) -> Iterator[_Workload]:
        return (w for w in self._workers.values() if w is not load and w.speed is not None)

    def _end(self, load: _Workload, shard: str, now: float) -> float:
        """When a worker of known speed would end one shard more."""
        return self._free(load, now) + self._costs[shard] / load.speed

    def _free(self, load: _Workload, now: float) -> float:
        """When a worker of known speed has ended what it has."""
        if not load.shards:
            return now
        first, *others = (self._costs[shard] / load.speed for shard in load.shards)
        end = (now if load.since is None else load.since) + first
        # Who is late is taken to be as late again, so that nobody waits for a worker that hangs.
        return max(end, 2 * now - end) + math.fsum(others)
