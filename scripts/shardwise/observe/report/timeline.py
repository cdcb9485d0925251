"""The timeline of every device: one bar a shard, and what is between the bars is idleness."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from markupsafe import Markup, escape

from shardwise.observe.observation import RUNNING
from shardwise.observe.report import words
from shardwise.observe.report.parts import WIDTH, Figure, Table, Ticks, rectangle, svg, time_ticks
from shardwise.observe.report.work import Bar, DeviceWork, Run, held_by
from shardwise.records.timeline import PHASES, length

MOST_BARS = 3000
"""Bars of a page; with more, all devices are drawn in merged columns."""

MOST_BARS_OF_A_DEVICE = 200
MOST_LANES = 8
MOST_DEVICES = 100
"""Rows that are drawn; the table has all."""

_KINDS = (*(f"p{number}" for number in range(len(PHASES))), "running", "unknown")
"""Classes of what is drawn: the phases, shards that are still at work, receipts that do not say."""

_COLUMNS = 200
_MOST_COLUMNS = 8000  # in all rows: their paths stay below a megabyte
_LANE, _SEAM = 20.0, 3.0
_BREAK = 12.0  # units between two stretches of the axis
_LABEL = 0.16  # of the width, which the label of a moment takes on a phone


@dataclass(frozen=True)
class Axis:
    """Where a moment is drawn; breaks between runs take a fixed, narrow place."""

    stretches: Sequence[tuple[float, float]]

    @property
    def gap(self) -> float:
        """Units of a break; all of them take half of the room at most."""
        return min(_BREAK, WIDTH / 2 / max(1, len(self.stretches) - 1))

    @cached_property
    def scale(self) -> float:
        """Units a second."""
        room = WIDTH - self.gap * (len(self.stretches) - 1)
        return room / max(length(self.stretches), 1e-9)

    @cached_property
    def places(self) -> tuple[tuple[float, float, float], ...]:
        """Begin, end and place of each stretch."""
        at, scale, made = 0.0, self.scale, []
        for begin, end in self.stretches:
            made.append((begin, end, at))
            at += (end - begin) * scale + self.gap
        return tuple(made)

    def x(self, moment: float) -> float:
        """The place of a moment."""
        found = 0.0
        for begin, end, at in self.places:
            if moment < begin:
                break
            found = at + (min(moment, end) - begin) * self.scale
        return found

    def ticks(self) -> list[tuple[float, str]]:
        """Labels: time since the begin, or where there are breaks, the hour at each stretch."""
        if len(self.stretches) == 1:
            return time_ticks(length(self.stretches))
        made: list[tuple[float, str]] = []
        for begin, _, at in self.places:
            if not made or at / WIDTH >= made[-1][0] + _LABEL:
                made.append((at / WIDTH, words.moment(begin)[5:16]))
        return made


def figure(run: Run) -> Figure | None:
    """The figure; None where nothing is known to have been at work."""
    if not run.devices:
        return None
    axis = Axis(run.stretches)
    merged = len(run.bars) > MOST_BARS
    shown = _shown(run)
    columns = max(24, min(_COLUMNS, _MOST_COLUMNS // len(shown)))
    rows = Markup("").join(
        _row(run, device, axis, i, columns if merged or _crowded(device) else None)
        for i, device in enumerate(shown)
    )
    any_merged = merged or any(map(_crowded, shown))
    axis_row = Markup("<div class='device axis'><div class=area>{}</div></div>").format(
        Ticks(axis.ticks()).across()
    )
    body = _legend(run) + Markup("<div class=timeline>{}{}</div>").format(rows, axis_row)
    return Figure(
        "timeline", "Every device, from the first shard to the last", body,
        _caption(run, shown, any_merged), _table(run), "Time by device as a table",
    )  # fmt: skip


def _shown(run: Run) -> list[DeviceWork]:
    if len(run.devices) <= MOST_DEVICES:
        return list(run.devices)
    worst = sorted(run.devices, key=run.idle, reverse=True)[:MOST_DEVICES]
    return [device for device in run.devices if device in worst]


def _crowded(device: DeviceWork) -> bool:
    return len(device.bars) > MOST_BARS_OF_A_DEVICE or device.lanes > MOST_LANES


def busy_share(run: Run, device: DeviceWork) -> float:
    """The share of the run in which a device had a shard at work."""
    return min(1.0, length(device.busy) / run.seconds) if run.seconds > 0 else 1.0


def _row(run: Run, device: DeviceWork, axis: Axis, number: int, columns: int | None) -> Markup:
    """One device: its name, its bars, how busy it was."""
    lanes = 1 if columns else device.lanes
    height = lanes * _LANE
    drawn = _merged(device, axis, height, columns) if columns else _bars(device, axis)
    busy = busy_share(run, device)
    finding = (
        f"{words.count(len(device.bars), 'shard')}; a shard at work {words.share(busy)} of the "
        f"time, {run.idle_name} {words.seconds(run.idle(device))}{_most(device)}"
    )
    plot = svg(f"dev{number}", height, drawn, f"Timeline of {device.name}", finding, "bars")
    return Markup(
        '<div class=device><div class=who title="{}">{}</div>'
        '<div class=area style="height:{}px">{}</div>'
        "<div class=busy><b>{}</b> at work</div></div>"
    ).format(
        words.plain(device.device.uuid or "") if device.device else "",
        words.device_in_two_lines(device.device),
        max(24, round(min(lanes, 6) * 16)), plot, words.share(busy),
    )  # fmt: skip


def _most(device: DeviceWork) -> str:
    held = device.held
    total = sum(held.values())
    if total <= 0:
        return ""
    phase = max(held, key=held.__getitem__)
    return f"; of its shards' time, {phase} took {words.share(held[phase] / total)}"


def _bars(device: DeviceWork, axis: Axis) -> Iterator[str]:
    """A bar for each shard, its phases from left to right."""
    height = device.lanes * _LANE
    busy = (rectangle(axis.x(a), 0, axis.x(b) - axis.x(a), height) for a, b in device.busy)
    yield f'<path class=ground d="{"".join(busy)}"/>'  # covers the hatching of idleness
    yield from _breaks(axis, height)
    for bar in device.bars:
        x, end = axis.x(bar.begin), axis.x(bar.end)
        y = bar.lane * _LANE + _SEAM / 2
        yield f"<g {_said(bar)}>{''.join(_segments(bar, x, end - x, y))}</g>"


def _breaks(axis: Axis, height: float) -> Iterator[str]:
    """What stands between two stretches of the axis."""
    for _, _, at in axis.places[1:]:
        yield f'<path class=break d="{rectangle(at - axis.gap, 0, axis.gap, height)}"/>'


def _said(bar: Bar) -> str:
    """The numbers of a bar, exactly as its receipt has them."""
    seen = bar.seen
    held = " ".join(repr(bar.held[phase]) for phase in PHASES) if bar.held else ""
    state = f" data-state={seen.state}" if seen.state == RUNNING else ""
    shard = escape(seen.shard)
    return f'class=s data-shard="{shard}" data-s={bar.seconds:.6g}{state} data-held="{held}"'


def _segments(bar: Bar, x: float, width: float, y: float) -> Iterator[str]:
    height = _LANE - _SEAM
    held = bar.held
    total = sum(held.values()) if held else 0.0
    if not held or total <= 0:
        kind = "running" if bar.seen.state == RUNNING else "unknown"
        yield f'<path class={kind} d="{rectangle(x, y, width, height)}"/>'
        return
    for number, phase in enumerate(PHASES):
        part = width * held[phase] / total
        if part > 0.0005:
            yield f'<path class=p{number} d="{rectangle(x, y, part, height)}"/>'
        x += part


def _merged(device: DeviceWork, axis: Axis, height: float, columns: int) -> Iterator[str]:
    """Columns as high as the share of their time that the device had a shard, cut by phase."""
    shares = _shares(device, axis, columns)
    wide = WIDTH / columns
    for phase, kind in enumerate(_KINDS):
        path = []
        for i, column in enumerate(shares):
            high = column[phase] * height
            if high >= 0.01:
                path.append(
                    rectangle(i * wide, height - sum(column[: phase + 1]) * height, wide, high)
                )
        if path:
            yield f'<path class={kind} d="{"".join(path)}"/>'
    yield from _breaks(axis, height)


def _shares(device: DeviceWork, axis: Axis, columns: int) -> list[list[float]]:
    """By column, the share of its time that each of :data:`_KINDS` took.

    A shard's phases count evenly over its time, and shards at once share the device's.
    """
    made = [[0.0] * len(_KINDS) for _ in range(columns)]
    for bar in device.bars:
        parts = _parts(bar)
        for column, share in _covered(axis, columns, bar.begin, bar.end):
            for kind, part in enumerate(parts):
                made[column][kind] += part * share
    busy = [0.0] * columns
    for begin, end in device.busy:
        for column, share in _covered(axis, columns, begin, end):
            busy[column] += share
    return [
        [part * whole / max(sum(own), 1e-9) for part in own]
        for own, whole in zip(made, busy, strict=True)
    ]


def _covered(axis: Axis, columns: int, begin: float, end: float) -> Iterator[tuple[int, float]]:
    """The columns that a span of time lies in, and the share of each that it covers."""
    wide, low, high = WIDTH / columns, axis.x(begin), axis.x(end)
    for column in range(int(low / wide), min(columns, int(high / wide) + 1)):
        overlap = min(high, (column + 1) * wide) - max(low, column * wide)
        if overlap > 0:
            yield column, overlap / wide


def _parts(bar: Bar) -> list[float]:
    total = sum(bar.held.values()) if bar.held else 0.0
    if not bar.held or total <= 0:
        running = bar.seen.state == RUNNING
        return [0.0] * len(PHASES) + [float(running), float(not running)]
    return [bar.held[phase] / total for phase in PHASES] + [0.0, 0.0]


def _legend(run: Run) -> Markup:
    """What the colours mean, with the share of all devices' time."""
    shares = time_shares(run)
    entries = Markup("").join(
        Markup("<li><i class={}></i>{} <b>{}</b></li>").format(
            _swatch(name), named(run, name), words.share(part)
        )
        for name, part in shares.items()
        if part > 0 or name in PHASES
    )
    widths = Markup("").join(
        Markup('<i class={} style="width:{}%"></i>').format(_swatch(name), f"{100 * part:.3f}")
        for name, part in shares.items()
        if part > 0
    )
    said = ", ".join(
        f"{named(run, name)} {words.share(part)}" for name, part in shares.items() if part > 0
    )
    return Markup(
        '<div class=total role=img aria-label="Of the time of all devices: {}">{}</div>'
        "<ul class=legend>{}</ul>"
    ).format(said, widths, entries)


def _swatch(name: str) -> str:
    return f"p{PHASES.index(name)}" if name in PHASES else name


def named(run: Run, name: str) -> str:
    """What a key of :func:`time_shares` is called."""
    called = {"idle": run.idle_name, "running": "still at work", "unknown": "phase unknown"}
    return called.get(name, name)


def time_shares(run: Run) -> dict[str, float]:
    """What the time of all devices went into, as shares of it; empty where no time is known.

    The keys are the phases, ``running``, ``unknown`` (the receipt does not say) and ``idle``.
    Where shards of one device overlap, they share its time.
    """
    whole = run.seconds * len(run.devices)
    if whole <= 0:
        return {}
    spent = dict.fromkeys(PHASES, 0.0)
    running = unknown = 0.0
    for device in run.devices:
        at_work = sum(bar.seconds for bar in device.bars)
        fold = length(device.busy) / at_work if at_work > 0 else 0.0
        for phase, found in held_by(device.bars).items():
            spent[phase] += found * fold
        for bar in device.bars:
            if not bar.held and bar.seen.state == RUNNING:
                running += bar.seconds * fold
            elif not bar.held:
                unknown += bar.seconds * fold
    idle = sum(run.idle(device) for device in run.devices)
    parts = {**spent, "running": running, "unknown": unknown, "idle": idle}
    total = sum(parts.values())
    return {name: part / total for name, part in parts.items()} if total > 0 else {}


def _caption(run: Run, shown: Sequence[DeviceWork], merged: bool) -> str:
    """What is drawn, and how."""
    begin = words.moment(run.begin)
    spent = words.seconds(run.seconds)
    told = [f"The first shard was begun on {begin}, and shards were at work for {spent}."]
    if merged:
        told.append(
            "There are too many shards for a bar each: the height of a column is the share of its "
            "time that the device had a shard, and its colours are what held the shards up."
        )
    else:
        told.append(
            "A bar is a shard. Its colours say how long each phase held it up, in this order; the "
            "phases of a shard in fact alternate and overlap, and each moment counts once."
        )
    if run.untimed:
        told.append(
            "Hatched is a device without a shard, as far as is known: attempts that failed, and "
            "shards whose receipt cannot be used, leave no times, and are hatched, too."
        )
    else:
        told.append("Hatched is idle: the device had no shard.")
    if any(bar.seen.state == RUNNING for bar in run.bars):
        told.append("A dashed outline is still at work.")
    if len(run.stretches) > 1:
        told.append("Breaks between runs, in which nothing was at work, are left out (grey).")
    if len(shown) < len(run.devices):
        told.append(
            f"Of {len(run.devices):,} devices, the {len(shown)} with most idle time are drawn; the "
            "table has all."
        )
    if any(bar.held is None and bar.seen.state != RUNNING for bar in run.bars):
        told.append("Grey are shards whose receipt does not say where their time went.")
    return " ".join(told)


def _table(run: Run) -> Table:
    heads = ["device", "shards", "at work", run.idle_name, "matrices/s", *PHASES]
    rows = []
    for device in run.devices:
        held = device.held
        speed = words.speed(device.matrix_rate)
        rows.append([
            device.name, words.count(len(device.bars)), words.share(busy_share(run, device)),
            words.seconds(run.idle(device)), speed,
            *(words.seconds(held.get(phase)) for phase in PHASES),
        ])  # fmt: skip
    return Table(heads, rows)
