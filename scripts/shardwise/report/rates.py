"""Throughput of each stage, beside the ceiling that was measured on its node."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from markupsafe import Markup

from shardwise.ceilings import Ceilings
from shardwise.observe import Observation
from shardwise.planfile import Plan
from shardwise.report import words
from shardwise.report.parts import Figure, Table
from shardwise.report.work import Bar, Run
from shardwise.timeline import STAGES, Span, length, union
from shardwise.units import number

MOST_NODES = 24
"""Nodes that are drawn; the table has all."""

NO_CEILING = "no ceiling measured here: make ceilings"
NO_LINK = "in memory, no link"
OWN_FUNCTION = "a function of your own has no ceiling"

_OF_NODE = ("read", "write")
"""Stages whose ceiling all devices of a node share; the others have one a device."""


@dataclass(frozen=True)
class Speed:
    """How fast a stage was on a node, while it was at work.

    Attributes
    ----------
    rate
        Bytes, or floating-point operations, a second; None where none is known.
    share
        Of the time of the shards, how much of it the stage was at work.
    ceiling
        The raw rate; None where none was measured.
    without
        Why there is no ceiling, where there is none.
    """

    node: str
    stage: str
    rate: float | None
    share: float | None
    ceiling: float | None
    without: str

    @property
    def unit(self) -> str:
        """Of the rates."""
        return "FLOP/s" if self.stage == "compute" else "B/s"

    @property
    def reached(self) -> float | None:
        """The rate as a share of the ceiling."""
        return self.rate / self.ceiling if self.rate is not None and self.ceiling else None


def speeds(run: Run, plan: Plan | None, ceilings: Mapping[str, Ceilings]) -> list[Speed]:
    """The speed of each stage on each node that has computed a shard."""
    nodes: dict[str, list[Bar]] = defaultdict(list)
    for bar in run.bars:
        if bar.seen.device and bar.held:
            nodes[bar.seen.device.node].append(bar)
    return [
        _speed(node, stage, nodes[node], plan, ceilings.get(node))
        for node in sorted(nodes)
        for stage in STAGES
    ]


def _speed(
    node: str, stage: str, bars: list[Bar], plan: Plan | None, measured: Ceilings | None
) -> Speed:
    """One stage; shards that were at work at once add up to what the disk, or the device, gave.

    As if no two were in this stage at once, as far as there was time for that: nobody knows when
    each was, and so a rate may be too low, and is never one that was not reached.
    """
    told = [bar.seen.timeline for bar in bars]
    busy = sum(number(own.busy.get(stage)) or 0.0 for own in told if own)
    work = sum(number(own.work.get(stage)) or 0.0 for own in told if own)
    whole = sum(bar.seconds for bar in bars)
    spent = min(busy, _seconds(bars, by_device=stage not in _OF_NODE))
    rate = work / spent if spent > 0 and work > 0 else None
    share = min(1.0, busy / whole) if whole > 0 else None
    without = _without(stage, bars, plan)
    ceiling = measured.rate(stage, plan) if measured and without == NO_CEILING else None
    return Speed(node, stage, rate, share, ceiling, "" if ceiling else without)


def _without(stage: str, bars: list[Bar], plan: Plan | None) -> str:
    """What is said of a stage without a ceiling."""
    if stage in ("upload", "download") and not any(
        bar.seen.device and bar.seen.device.uuid for bar in bars
    ):
        return NO_LINK
    if stage == "compute" and plan is not None and plan.problem.result:
        return OWN_FUNCTION
    return NO_CEILING


def _seconds(bars: Iterable[Bar], by_device: bool) -> float:
    """In which a node had a shard at work; or those of its devices, added up."""
    spans: dict[str, list[Span]] = defaultdict(list)
    for bar in bars:
        whose = bar.seen.device.key if by_device and bar.seen.device else ""
        spans[whose].append((bar.begin, bar.end))
    return sum(length(union(own)) for own in spans.values())


def figure(seen: Observation, run: Run, ceilings: Mapping[str, Ceilings]) -> Figure | None:
    """The figure; None where no receipt says how long its stages were at work."""
    found = speeds(run, seen.plan, ceilings)
    if not found:
        return None
    nodes = list(dict.fromkeys(speed.node for speed in found))
    shown = nodes[:MOST_NODES]
    body = Markup("<div class=rates>{}</div>").format(
        Markup("").join(_node(node, [s for s in found if s.node == node]) for node in shown)
    )
    caption = _caption(found)
    if len(shown) < len(nodes):
        caption += f" The first {len(shown)} of {len(nodes):,} nodes are drawn."
    heads = ["node and stage", "rate while at work", "ceiling", "reached", "at work"]
    rows = [
        [
            f"{words.plain(speed.node)}: {speed.stage}", words.rate(speed.rate, speed.unit),
            speed.without or words.rate(speed.ceiling, speed.unit), words.share(speed.reached),
            words.share(speed.share),
        ]
        for speed in found
    ]  # fmt: skip
    return Figure("rates", "How fast each stage was", body, caption, Table(heads, rows))


def _caption(found: list[Speed]) -> str:
    """What limits, and how it was reckoned."""
    told = (
        "The rate of each stage while it was at work, and the share of the shards' time of that. "
    )
    if any(speed.ceiling is not None for speed in found):
        told += (
            "The bar is the rate as a share of the ceiling (the mark): what the disk, the bus or "
            "the device gives alone. A stage that is at work nearly always, near its ceiling, is "
            "what limits; far below it, there is something to gain. "
        )
    if any((speed.reached or 0.0) > 1 for speed in found):
        told += (
            "More than 100 % is no fault: the page cache gave the bytes, or the ceiling was "
            "measured beside other work. "
        )
    if any(speed.ceiling is None for speed in found):
        told += "Where there is no ceiling, a thin bar is the share of the time. "
    return told + (
        "Shards at work at the same time are added up: for reading and writing over a node, else "
        "over a device. Stages of shards at once are taken to have been at work one after the "
        "other, where there was time for that: the true rates may be higher."
    )


def _node(node: str, found: list[Speed]) -> Markup:
    rows = Markup("").join(map(_row, found))
    said = "; ".join(
        f"{s.stage} {words.rate(s.rate, s.unit)}"
        + (f", {words.share(s.reached)} of its ceiling" if s.reached is not None else "")
        for s in found
        if s.rate is not None
    )
    nothing = all(speed.ceiling is None for speed in found)
    beside = Markup(" <small>{}</small>").format(NO_CEILING) if nothing else ""
    return Markup(
        '<div class=node role=img aria-label="Throughput on {}: {}"><h4>{}{}</h4>{}</div>'
    ).format(words.plain(node), said or "not known", words.plain(node), beside, rows)


def _row(speed: Speed) -> Markup:
    """One stage: its bars and its figures."""
    reached = speed.reached
    told = words.rate(speed.rate, speed.unit)
    if speed.ceiling is not None:
        told += f" of {words.rate(speed.ceiling, speed.unit)} ({words.share(reached)})"
    elif speed.without != NO_CEILING:
        told += f" ({speed.without})"
    place = STAGES.index(speed.stage) + 1
    if reached is not None:
        scale = max(1.0, reached)
        bar = Markup('<i class=p{} style="width:{}%"></i><u style="left:{}%"></u>').format(
            place, f"{100 * reached / scale:.2f}", f"{100 / scale:.2f}"
        )
    else:
        part = f"{100 * (speed.share or 0):.2f}"
        bar = Markup('<i class="p{} slim" style="width:{}%"></i>').format(place, part)
    return Markup(
        "<div class=rate><span>{}</span><div class='gauge{}'>{}</div>"
        "<span class=told>{}</span><span class=told>{} at work</span></div>"
    ).format(speed.stage, "" if speed.ceiling else " none", bar, told, words.share(speed.share))
