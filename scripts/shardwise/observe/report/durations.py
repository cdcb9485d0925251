"""Shards by duration, and why the stragglers took longer."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from markupsafe import Markup, escape

from shardwise.observe.observation import DONE, RUNNING
from shardwise.observe.report import words
from shardwise.observe.report.parts import (
    WIDTH,
    Figure,
    Table,
    Ticks,
    framed,
    line,
    nice_step,
    svg,
    trim,
)
from shardwise.observe.report.work import Bar, Run
from shardwise.records.timeline import PHASES
from shardwise.units import number

STRAGGLER = 1.5
"""Times the median duration, from which a shard counts as a straggler."""

MOST_TABLED = 10_000
"""Shards of the table; the ledger has all."""

_LEAST_SHARDS = 3  # of fewer, none is typical
_MOST_POINTS = 500
_MOST_DOTS = 200
_MOST_NAMED = 20
_HEIGHT = 220.0


@dataclass(frozen=True)
class Straggler:
    """A shard that took much longer than a typical one.

    Attributes
    ----------
    times
        Its duration over the median.
    why
        What was larger in it than in the others.
    """

    bar: Bar
    times: float
    why: str


def stragglers(run: Run) -> list[Straggler]:
    """The shards that took, or have taken, longer than a typical one, the worst first."""
    done = _done(run)
    typical = run.typical
    if typical is None or typical <= 0 or len(done) < _LEAST_SHARDS:
        return []
    usual = _usual(done)
    found = [
        Straggler(bar, bar.seconds / typical, _why(bar, usual))
        for bar in run.bars
        if bar.seconds > STRAGGLER * typical
    ]
    return sorted(found, key=lambda own: (-own.times, own.bar.seen.shard))


def _done(run: Run) -> list[Bar]:
    return sorted((bar for bar in run.bars if bar.seen.state == DONE), key=lambda bar: bar.seconds)


def _usual(bars: Sequence[Bar]) -> dict[str, float]:
    """The median seconds of each phase."""
    known = [bar.held for bar in bars if bar.held]
    return {phase: median(held[phase] for held in known) for phase in PHASES} if known else {}


def _why(bar: Bar, usual: dict[str, float]) -> str:
    """The phase that was longer than usual by most, and what the device said meanwhile."""
    told = []
    if bar.seen.state == RUNNING:
        told.append("still at work")
    if bar.held and usual:
        phase = max(PHASES, key=lambda name: bar.held[name] - usual[name])  # type: ignore[index]
        told.append(
            f"{phase} took {words.seconds(bar.held[phase])}, "
            f"{words.seconds(usual[phase])} in a typical shard"
        )
    told += [
        f"slowed down {words.seconds(spent)} by {name.replace('_', ' ')}"
        for name, spent in throttled(bar).items()
    ]
    if bar.seen.attempts > 1:
        told.append(f"attempt {bar.seen.attempts}")
    return "; ".join(told) or "its receipt does not say where its time went"


def throttled(bar: Bar) -> dict[str, float]:
    """Seconds in which the device ran slower, by reason; empty where nothing says so."""
    found = words.inside(bar.seen.telemetry, "throttled_seconds")
    if not isinstance(found, dict):
        return {}
    spent = {words.plain(name)[:40]: number(value) for name, value in found.items()}
    return {name: value for name, value in spent.items() if value and value > 0}


def figure(run: Run) -> Figure | None:
    """The figure; None where no shard is done."""
    done = _done(run)
    if not done:
        return None
    late = stragglers(run)
    typical = run.typical or 0.0
    top = _top(max(done[-1].seconds, STRAGGLER * typical))
    plot = svg("durations", _HEIGHT, _drawn(done, late, typical, top), "Shards by duration",
               _finding(run, done, late), "curve")  # fmt: skip
    step = nice_step(top / 4)
    left = Ticks([(i * step / top, words.seconds(i * step) if i else "0")
                  for i in range(int(top / step + 1e-9) + 1)])  # fmt: skip
    below = Ticks([(0.0, "shortest"), (0.5, "median"), (1.0, "longest")])
    body = framed(plot, below, left) + _named(late)
    caption = (
        f"{_finding(run, done, late)}. Each shard that is done, from the shortest to the longest. "
        f"The line across is the median, the dashed one {STRAGGLER:g} times that: what lies above "
        "is a straggler."
    )
    return Figure("durations", "Shards by duration", body, caption, _table(run, late),
                  "All shards as a table")  # fmt: skip


def _top(longest: float) -> float:
    step = nice_step(max(longest, 1e-6) / 4)
    return step * max(1, -(-longest // step))


def _finding(run: Run, done: Sequence[Bar], late: Sequence[Straggler]) -> str:
    longest = words.seconds(done[-1].seconds)
    told = f"A typical shard took {words.seconds(run.typical)}, the longest {longest}"
    if len(done) < _LEAST_SHARDS:
        return told
    if not late:
        return f"{told}; there is no straggler"
    named = words.some([own.bar.seen.shard for own in late], 3)
    return f"{told}; {words.count(len(late), 'straggler')}: {named}"


def _drawn(
    done: Sequence[Bar], late: Sequence[Straggler], typical: float, top: float
) -> list[str]:  # fmt: skip
    """The curve, the two lines, and a dot for each straggler that is done."""
    places = {bar.seen.shard: WIDTH * (i + 0.5) / len(done) for i, bar in enumerate(done)}

    def height(spent: float) -> float:
        return _HEIGHT * (1 - spent / top)

    step = max(1, len(done) // _MOST_POINTS)
    some = [*done[::step], done[-1]]
    points = [(places[bar.seen.shard], height(bar.seconds)) for bar in some]
    points = [(0.0, points[0][1]), *points, (float(WIDTH), points[-1][1])]
    area = f"{line(points)}L{WIDTH} {trim(_HEIGHT)}L0 {trim(_HEIGHT)}z"
    drawn = [
        f'<path class=fill d="{area}"/>', f'<path class=line d="{line(points)}"/>',
        f'<path class=median d="M0 {trim(height(typical))}h{WIDTH}"/>',
        f'<path class=limit d="M0 {trim(height(STRAGGLER * typical))}h{WIDTH}"/>',
    ]  # fmt: skip
    # A line of no length with round ends is a dot whose shape no stretching changes.
    dots = [own.bar for own in late if own.bar.seen.shard in places][:_MOST_DOTS]
    drawn += [
        f'<path class="dot s" data-shard="{escape(bar.seen.shard)}" data-s={bar.seconds:.6g} '
        f'd="M{trim(places[bar.seen.shard])} {trim(height(bar.seconds))}h0"/>'
        for bar in dots
    ]
    return drawn


def _named(late: Sequence[Straggler]) -> Markup:
    """The stragglers in words."""
    if not late:
        return Markup("")
    items = Markup("").join(
        Markup("<li><b>{}</b> on {}: {}, {} times the median. <span>{}.</span></li>").format(
            own.bar.seen.shard, words.device(own.bar.seen.device), words.seconds(own.bar.seconds),
            f"{own.times:.2g}", own.why[:1].upper() + own.why[1:],
        )
        for own in late[:_MOST_NAMED]
    )  # fmt: skip
    more = len(late) - _MOST_NAMED
    rest = Markup("<p class=note>… and {} more, in the table.</p>").format(more) if more > 0 else ""
    return Markup("<ol class=stragglers>{}</ol>{}").format(items, rest)


def _table(run: Run, late: Sequence[Straggler]) -> Table:
    heads = ["shard", "device", "state", "begun after", "took", *PHASES, "attempts"]
    slowest = sorted(run.bars, key=lambda bar: (-bar.seconds, bar.seen.shard))
    numbers = {id(device.device): device.name for device in run.devices}
    begin = run.begin or 0.0
    marked = {own.bar.seen.shard for own in late}
    rows = []
    for bar in slowest[:MOST_TABLED]:
        held = bar.held or {}
        state = "straggler" if bar.seen.shard in marked else bar.seen.state
        name = numbers.get(id(bar.seen.device)) or words.device(bar.seen.device)
        rows.append([
            bar.seen.shard, name, state, words.seconds(bar.begin - begin),
            words.seconds(bar.seconds), *(words.seconds(held.get(phase)) for phase in PHASES),
            str(bar.seen.attempts),
        ])  # fmt: skip
    note = ""
    if len(slowest) > MOST_TABLED:
        note = (
            f"The {MOST_TABLED:,} longest of {len(slowest):,} shards; ledger.tsv has all of them."
        )
    return Table(heads, rows, frozenset({1, 2}), note, filtered=True)
