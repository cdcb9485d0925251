"""Throughput of each stage on each node."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup

from shardwise.observe.report import words
from shardwise.observe.report.parts import Figure, Table
from shardwise.observe.report.work import Bar, Run
from shardwise.records.timeline import STAGES, Span, length, union
from shardwise.units import number

MOST_NODES = 24
"""Nodes that are drawn; the table has all."""

NO_LINK = "in memory, no link"

CAPTION = (
    "The rate of each stage while it was at work; the bar is the share of the shards' time in "
    "which it was. A stage that is at work nearly always is what limits. Shards at work at the "
    "same time are added up: for reading and writing over a node, else over a device. Stages of "
    "shards at once are taken to have been at work one after the other, where there was time for "
    "that: the true rates may be higher."
)

_OF_NODE = ("read", "write")
"""Stages whose hardware all devices of a node share; for the others each device has its own."""


@dataclass(frozen=True)
class Speed:
    """How fast a stage was on a node, while it was at work.

    Attributes
    ----------
    rate
        Bytes, or floating-point operations, a second; None where none is known.
    share
        Of the time of the shards, how much of it the stage was at work.
    note
        What to know about the rate; empty where there is nothing.
    """

    node: str
    stage: str
    rate: float | None
    share: float | None
    note: str

    @property
    def text(self) -> str:
        """The rate with its unit, and the note."""
        rate = words.rate(self.rate, "FLOP/s" if self.stage == "compute" else "B/s")
        return f"{rate} ({self.note})" if self.note else rate


def speeds(run: Run) -> list[Speed]:
    """The speed of each stage on each node that has computed a shard."""
    nodes: dict[str, list[Bar]] = defaultdict(list)
    for bar in run.bars:
        if bar.seen.device and bar.held:
            nodes[bar.seen.device.node].append(bar)
    return [_speed(node, stage, nodes[node]) for node in sorted(nodes) for stage in STAGES]


def _speed(node: str, stage: str, bars: list[Bar]) -> Speed:
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
    on_gpu = any(bar.seen.device and bar.seen.device.uuid for bar in bars)
    note = NO_LINK if stage in ("upload", "download") and not on_gpu else ""
    return Speed(node, stage, rate, share, note)


def _seconds(bars: Iterable[Bar], by_device: bool) -> float:
    """In which a node had a shard at work; or those of its devices, added up."""
    spans: dict[str, list[Span]] = defaultdict(list)
    for bar in bars:
        whose = bar.seen.device.key if by_device and bar.seen.device else ""
        spans[whose].append((bar.begin, bar.end))
    return sum(length(union(own)) for own in spans.values())


def figure(run: Run) -> Figure | None:
    """The figure; None where no receipt says how long its stages were at work."""
    found = speeds(run)
    if not found:
        return None
    nodes = list(dict.fromkeys(speed.node for speed in found))
    shown = nodes[:MOST_NODES]
    body = Markup("<div class=rates>{}</div>").format(
        Markup("").join(_node(node, [s for s in found if s.node == node]) for node in shown)
    )
    caption = CAPTION
    if len(shown) < len(nodes):
        caption += f" The first {len(shown)} of {len(nodes):,} nodes are drawn."
    heads = ["node and stage", "rate while at work", "at work"]
    rows = [
        [f"{words.plain(speed.node)}: {speed.stage}", speed.text, words.share(speed.share)]
        for speed in found
    ]
    return Figure("rates", "How fast each stage was", body, caption, Table(heads, rows))


def _node(node: str, found: list[Speed]) -> Markup:
    rows = Markup("").join(map(_row, found))
    said = "; ".join(f"{s.stage} {s.text}" for s in found if s.rate is not None)
    return Markup(
        '<div class=node role=img aria-label="Throughput on {}: {}"><h4>{}</h4>{}</div>'
    ).format(words.plain(node), said or "not known", words.plain(node), rows)


def _row(speed: Speed) -> Markup:
    """One stage: the share of its time as a bar, and its figures."""
    return Markup(
        '<div class=rate><span>{}</span><div class=gauge><i class=p{} style="width:{}%"></i></div>'
        "<span class=told>{}</span><span class=told>{} at work</span></div>"
    ).format(
        speed.stage, STAGES.index(speed.stage) + 1, f"{100 * (speed.share or 0):.2f}", speed.text,
        words.share(speed.share),
    )  # fmt: skip
