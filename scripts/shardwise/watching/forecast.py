"""How long a run will take from now on: numbers in, a median and an 80 % interval out.

What was finished lately says how fast each device is and how much its shards differ; the places in
which shards ran say how many run at once. The rest of the run is then played through many times,
each place taking the next shard as it becomes free, with speeds and durations drawn from what was
seen. The fewer shards were seen, the wider the draws. Pure, and standard library only.
"""

import heapq
import math
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

_RECENT = 16
"""Shards that count, at most, for each place: what was long ago was another run, or a cold cache.

The first of a place is left out once there are :data:`_WARM` more: it compiles kernels."""
_WARM = 3
_LEAST_PROGRESS = 0.05
"""A task that has done less says nothing of its speed yet."""
_MOST_PROGRESS = 0.95
"""What is taken for done where a task is late and does not say how far it is."""
_PAUSE_SECONDS = 60.0
"""A place that was empty for longer, and for longer than shards take, was not between two shards:
the run itself stood still."""
_DOUBT, _DOUBT_WEIGHT = 0.15, 0.25
"""How much shards differ, relative to their duration, as long as none have shown it; and how many
shards that counts for."""
_DRIFT = 0.02
"""How well the past tells the future at best: disks and networks are shared with others."""
_STRANGER, _STRANGE_KIND = 0.15, 0.6
"""How far a device that has finished nothing may be from others of its name, or of another."""
_FEW, _RESAMPLED = 4, 10
"""From this many shards on, the differences that were seen are drawn again, not a smooth curve."""
_SHARES = 4.0
"""Far from the end shards are drawn by the batch: of a place's share of the rest, one part in so
many. It keeps the work small for 10,000 shards, and the last ones are drawn one by one."""
_MOST_ROWS = 1024
"""Shards of one device that are looked at: enough for as many places as a node has cores."""
_DRAWS, _FEWEST_DRAWS, _EFFORT = 300, 40, 20_000


@dataclass(frozen=True)
class Past:
    """A finished shard.

    Attributes
    ----------
    device
        What tells devices apart.
    kind
        The device's name: those of one name are alike.
    started, finished
        Seconds of Unix time.
    work
        Its size, in whatever unit all have.
    """

    device: str
    kind: str
    started: float
    finished: float
    work: float


@dataclass(frozen=True)
class AtWork:
    """A shard that is being computed.

    Attributes
    ----------
    device, kind
        None where the task does not say.
    progress
        The share that is done, None where unknown.
    """

    device: str | None
    kind: str | None
    started: float
    work: float
    progress: float | None = None


@dataclass(frozen=True)
class Forecast:
    """Seconds until no shard waits or is at work.

    Attributes
    ----------
    low, middle, high
        The time left is less than ``low`` in one case of ten, and more than ``high`` in one of
        ten; it is as likely above as below ``middle``.
    """

    low: float
    middle: float
    high: float


class Unknown(ValueError):  # noqa: N818 - it is no error not to know
    """Nothing can be said; the text says why, for people."""


def forecast(
    now: float, past: Iterable[Past], at_work: Sequence[AtWork], waiting: Sequence[float]
) -> Forecast:
    """When all will be done, if the run goes on as it did lately.

    Parameters
    ----------
    now
        Seconds of Unix time.
    waiting
        The work of each shard that none has begun, in the order in which they will be taken.

    Raises
    ------
    Unknown
        Where nothing runs, or nothing that runs has come far enough to tell.
    """
    if not at_work and not waiting:
        return Forecast(0.0, 0.0, 0.0)
    seen = _Seen(now, list(past), at_work)
    places = seen.busy + (seen.idle if waiting else [])
    if not places:
        raise Unknown("no task is at work" if seen.speeds else "no shard has been begun")
    if not seen.speeds:
        raise Unknown("no shard has finished yet")
    dice = random.Random(0)  # always the same: a figure that jumps while nothing happens is no help
    draws, effort = [], 0
    while len(draws) < _FEWEST_DRAWS or (len(draws) < _DRAWS and effort < _EFFORT):
        end, steps = _play(seen, places, waiting, dice)
        draws.append(end)
        effort += steps + len(places)
    tenths = statistics.quantiles(draws, n=10, method="inclusive")
    return Forecast(tenths[0], tenths[4], tenths[8])


@dataclass
class _Place:
    """Where one shard at a time is computed: a device, or a part of a CPU."""

    device: str
    kind: str
    task: AtWork | None = None


@dataclass
class _Speed:
    """Of a device: seconds for a unit of work, and how many shards say so."""

    seconds: float
    weight: float


class _Seen:
    """What the past says of devices, of shards, and of the places in which they run."""

    def __init__(self, now: float, past: list[Past], at_work: Sequence[AtWork]) -> None:
        self.now = now
        at_work, silent = (
            [task for task in at_work if (task.device is None) is unknown]
            for unknown in (False, True)
        )
        self.busy = [_Place(task.device, task.kind, task) for task in at_work]
        self.idle: list[_Place] = []
        rows: dict[str, list[Past | AtWork]] = defaultdict(list)
        for row in [*past, *at_work]:
            rows[row.device].append(row)
        self._kinds = {row.device: row.kind for some in rows.values() for row in some[:1]}
        typical = statistics.median(row.finished - row.started for row in past) if past else 0.0
        self._patience = max(_PAUSE_SECONDS, typical)
        self._cycles: dict[str, list[tuple[float, float]]] = {}
        self.gap = 0.0
        chains = {device: _chains(some) for device, some in rows.items()}
        self._look_at(chains)
        self._seat(silent, past)
        self.speeds = self._speeds(at_work)
        self._weights: dict[str, float] = defaultdict(float)
        self.kinds = self._of_kinds()
        self.spread, self.odds, self._freedom = self._differences()
        self.between = self._between()

    def _look_at(self, chains: dict[str, list[list[Past | AtWork]]]) -> None:
        """Find idle places, the time between two shards, and what each shard took with it."""
        gaps, found = [], defaultdict(list)
        for device, some in chains.items():
            for chain in some:
                last = chain[-1]
                if isinstance(last, Past) and self.now - last.finished <= self._patience:
                    self.idle.append(_Place(device, last.kind))
                between = [
                    later.started - earlier.finished
                    for earlier, later in pairwise(chain)
                    if isinstance(earlier, Past)
                ]
                between = [gap if gap <= self._patience else None for gap in between]
                gaps += [gap for gap in between[-_RECENT:] if gap is not None]
                found[device].append(list(zip(chain, [None, *between], strict=True)))
        self.gap = statistics.fmean(gaps) if gaps else 0.0
        for device, some in found.items():
            for pairs in some:
                done = [
                    (row.finished - row.started + (self.gap if gap is None else gap), row.work)
                    for row, gap in pairs
                    if isinstance(row, Past)
                ]
                done = done[1:] if len(done) > _WARM else done
                self._cycles.setdefault(device, []).extend(done[-_RECENT:])

    def _seat(self, silent: list[AtWork], past: list[Past]) -> None:
        """Tasks that do not say where they are: where there is room, else on a device like most."""
        usual = Counter(row.kind for row in past).most_common(1)
        for task in silent:
            free = self.idle.pop() if self.idle else _Place("", usual[0][0] if usual else "")
            self.busy.append(_Place(free.device, free.kind, task))

    def _speeds(self, at_work: Sequence[AtWork]) -> dict[str, _Speed]:
        """Seconds a unit of work; tasks at work count by what they have done so far.

        Without them the quick shards, which are finished first, would speak for all.
        """
        seconds = {d: sum(took for took, _ in c) for d, c in self._cycles.items()}
        done = {d: sum(work for _, work in c) for d, c in self._cycles.items()}
        weight = {d: float(len(c)) for d, c in self._cycles.items()}
        whole = {d: seconds[d] / done[d] for d in done if done[d] > 0}
        for task in at_work:
            device, elapsed, share = task.device, max(0.0, self.now - task.started), task.progress
            if share is None and device in whole:
                usual = whole[device] * task.work
                share = min(elapsed / usual, _MOST_PROGRESS) if usual > 0 else None
            if share is None or share < _LEAST_PROGRESS:
                continue
            seconds[device] = seconds.get(device, 0.0) + elapsed + share * self.gap
            done[device] = done.get(device, 0.0) + share * task.work
            weight[device] = weight.get(device, 0.0) + share
        return {d: _Speed(seconds[d] / done[d], weight[d]) for d in done if done[d] > 0}

    def _of_kinds(self) -> dict[str, float]:
        """Seconds a unit of work on all devices of a name together."""
        seconds: dict[str, float] = defaultdict(float)
        for device, speed in self.speeds.items():
            seconds[self._kinds[device]] += speed.seconds * speed.weight
            self._weights[self._kinds[device]] += speed.weight
        return {kind: took / self._weights[kind] for kind, took in seconds.items()}

    def _differences(self) -> tuple[float, list[float], float]:
        """How far shards are from their device's mean: relative spread, odds, degrees of freedom.

        The odds are those differences in units of the spread; empty where they are too few.
        """
        own = {d: c for d, c in self._cycles.items() if len(c) > 1 and d in self.speeds}
        odds = [
            odd
            for device, cycles in own.items()
            for odd in _odds(cycles, self.speeds[device].seconds, len(cycles))
        ]
        freedom = len(odds) - len(own)
        if freedom < _FEW:  # then those of one name are taken for one device
            kinds = defaultdict(list)
            for device, cycles in self._cycles.items():
                kinds[self._kinds[device]] += cycles
            some = {kind: c for kind, c in kinds.items() if len(c) > 1 and kind in self.kinds}
            odds = [o for kind, c in some.items() for o in _odds(c, self.kinds[kind], len(c))]
            freedom = len(odds) - len(some)
        total = _DOUBT_WEIGHT * _DOUBT**2 + sum(odd * odd for odd in odds)
        spread = math.sqrt(total / (_DOUBT_WEIGHT + len(odds)))
        spread *= 1 + 2 / (4 + len(odds))  # the rare slow ones are not among the first few
        if len(odds) < _RESAMPLED or not (size := statistics.pstdev(odds)):
            odds = []
        else:
            mean = statistics.fmean(odds)
            odds = [(odd - mean) / size for odd in odds]
        return spread, odds, 1.0 + freedom

    def _between(self) -> float:
        """How far devices of one name are from each other, relative to their speed."""
        squares, noise = [], []
        for device, speed in self.speeds.items():
            usual = self.kinds[self._kinds[device]]
            if speed.weight >= 1 and usual > 0:
                squares.append((speed.seconds / usual - 1) ** 2)
                noise.append(self.spread**2 / speed.weight)
        if len(squares) < 2:
            return _STRANGER
        return max(_STRANGER / 3, math.sqrt(max(0.0, statistics.fmean(squares) * len(squares)
                   / (len(squares) - 1) - statistics.fmean(noise))))  # fmt: skip

    def drawn(self, places: list[_Place], spread: float, dice: random.Random) -> list[float]:
        """Seconds a unit of work in each place, as they may be by what was seen."""
        drift = _factor(dice, _DRIFT)  # disks and networks are shared: all get slower together
        kinds: dict[str, float] = {}
        found: dict[str, float] = {}
        for place in places:
            if place.kind not in kinds:
                kinds[place.kind] = self._of_kind(place.kind, spread, dice)
            if place.device not in found:
                found[place.device] = self._of_device(place, kinds[place.kind], spread, dice)
        return [found[place.device] * drift for place in places]

    def _of_kind(self, kind: str, spread: float, dice: random.Random) -> float:
        """Of a device of this name, typically."""
        if kind in self.kinds:
            return self.kinds[kind] * _factor(dice, spread / math.sqrt(self._weights[kind]))
        every = statistics.fmean(self.kinds.values())
        return every * _factor(dice, math.hypot(_STRANGE_KIND, spread))

    def _of_device(self, place: _Place, usual: float, spread: float, dice: random.Random) -> float:
        """Of one device: what it has shown, and as much of its kind as it has shown too little."""
        speed = self.speeds.get(place.device)
        if speed is None:
            return usual * _factor(dice, self.between)
        others = (self.spread / self.between) ** 2
        weight = speed.weight + others
        mixed = (speed.seconds * speed.weight + usual * others) / weight
        return mixed * _factor(dice, spread * math.sqrt(speed.weight) / weight)

    def surprise(self, dice: random.Random) -> float:
        """How much larger the spread may be than the few shards have shown (Student's t)."""
        chi = dice.gammavariate(self._freedom / 2, 2)
        return min(4.0, math.sqrt(self._freedom / max(chi, 1e-9)))


def _odds(cycles: list[tuple[float, float]], usual: float, count: int) -> list[float]:
    """How far some shards are from their mean, as many as they are."""
    stretch = math.sqrt(count / (count - 1))
    return [
        (took / (usual * work) - 1) * stretch for took, work in cycles if work > 0 and usual > 0
    ]


def _chains(rows: list[Past | AtWork]) -> list[list[Past | AtWork]]:
    """The shards of a device, one row for each of its places: a shard begins where one has ended.

    A CPU computes several at once. Each goes to the place that became free last, so that a place
    which is no longer used shows.
    """
    chains: list[list[Past | AtWork]] = []
    # A task at work is the last of its chain, even where clocks say that it began long ago.
    rows = sorted(rows, key=lambda row: (isinstance(row, AtWork), row.started))
    for row in rows[-_MOST_ROWS:]:
        free = [c for c in chains if isinstance(c[-1], Past) and c[-1].finished <= row.started]
        if free:
            max(free, key=lambda c: c[-1].finished).append(row)
        else:
            chains.append([row])
    return chains


def _factor(dice: random.Random, spread: float) -> float:
    """A number above 0 with mean 1 and this standard deviation (log-normal)."""
    variance = math.log1p(spread * spread)
    return math.exp(dice.gauss(0.0, math.sqrt(variance)) - variance / 2)


def _play(
    seen: _Seen, places: list[_Place], waiting: Sequence[float], dice: random.Random
) -> tuple[float, int]:
    """Play the rest of the run once: the seconds that it takes, and the steps of that."""
    spread = seen.spread * seen.surprise(dice)
    speeds = seen.drawn(places, spread, dice)
    free = [
        (_rest(seen, place.task, speed, spread, dice) if place.task else 0.0, number)
        for number, (place, speed) in enumerate(zip(places, speeds, strict=True))
    ]
    end = max((at for at, _ in free), default=0.0)
    if not waiting:
        return end, 1
    heapq.heapify(free)
    rates = [1 / max(speed, 1e-12) for speed in speeds]
    whole, sizes = sum(rates), [0.0, *accumulate(waiting)]
    begun, steps = 0, 0
    while begun < len(waiting):
        at, number = free[0]
        share = (len(waiting) - begun) * rates[number] / whole / _SHARES
        taken = max(1, int(share))
        work = sizes[begun + taken] - sizes[begun]
        at += speeds[number] * work * _luck(seen, spread, taken, dice)
        heapq.heapreplace(free, (at, number))
        begun, steps, end = begun + taken, steps + 1, max(end, at)
    return end, steps


def _luck(seen: _Seen, spread: float, shards: int, dice: random.Random) -> float:
    """How much longer than usual some shards take together."""
    if shards == 1 and seen.odds:
        return max(0.02, 1 + spread * dice.choice(seen.odds))
    return _factor(dice, spread / math.sqrt(shards))


def _rest(seen: _Seen, task: AtWork, speed: float, spread: float, dice: random.Random) -> float:
    """Seconds that a task at work needs still."""
    elapsed, usual = max(0.0, seen.now - task.started), speed * task.work
    if task.progress is not None:
        share = min(max(task.progress, 0.0), 1.0)
        total = usual * _luck(seen, spread, 1, dice)
        if share >= _LEAST_PROGRESS and total > 0 and elapsed > 0:
            # The nearer to its end, the more it speaks for itself.
            total = math.exp((1 - share) * math.log(total) + share * math.log(elapsed / share))
        return (1 - share) * total
    for _ in range(8):  # it takes longer than it has taken so far
        total = usual * _luck(seen, spread, 1, dice)
        if total > elapsed:
            return total - elapsed
    return max(elapsed, usual) * spread * dice.random()
