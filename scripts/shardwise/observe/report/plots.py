"""The plots of the page, drawn by matplotlib as SVG.

Colours become variables of the page's style, so that one drawing serves light, dark and paper. No
plot needs a script: the text of a bar is the title of its link, which browsers show on hover.
"""

import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.colors import AsinhNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from shardwise.observe.observation import DONE
from shardwise.observe.report.matrix import Matrix
from shardwise.observe.run_table import RunTable, joined
from shardwise.records.timeline import PHASES, Span
from shardwise.units import count, plain, seconds, share

PHASE_NAMES = ("waiting", "reading the input", "computing", "writing the result")
"""What the page calls the phases, in their order."""

MOST_BARS = 600
"""The most shards that are drawn one by one; of more, only when a device had any."""

MOST_DEVICES = 50
"""The most rows that are drawn: those with the most idle time. The table has all."""

WIDE, NARROW = 780, 350
"""Widths in CSS pixels: of the timeline, and of a plot that fits a phone."""

_MOST_LANES, _LEAST_GAP = 8, 1 / 200  # a shorter pause, as a share of the run, is not drawn
_ROW, _LABEL = 38, 16  # pixels of a device's row, and of the label in it
_CLIPPED = 0.005  # the share of cells that may lie beyond an end of the colour scale
_BENT = 30.0  # times the typical cell: if the scale ends beyond, it is asinh

_PHASES = tuple(f"p{i}" for i in range(len(PHASES)))
_NAMES = ("ink", "dim", "line", "idle", "bg", *_PHASES)
_COLOURS = {name: f"#0{i:x}fed{i:x}" for i, name in enumerate(_NAMES)}
"""Placeholder colours, by the names of the style's variables."""

_STYLE = {
    "svg.fonttype": "none", "image.composite_image": False, "font.size": 12, "hatch.linewidth": 1,
    "axes.spines.top": False, "axes.spines.right": False, "figure.facecolor": "none",
    "axes.facecolor": "none", "axes.edgecolor": _COLOURS["dim"], "text.color": _COLOURS["ink"],
    "axes.labelcolor": _COLOURS["dim"], "xtick.color": _COLOURS["dim"],
    "ytick.color": _COLOURS["dim"], "axes.formatter.use_mathtext": False,
    "axes.unicode_minus": False, "figure.dpi": 72, "path.simplify": False,
}  # fmt: skip


_TIMELINE = {
    True: "Each row is a device, each bar a shard. Colours show what held the shard up, added up "
    "in a fixed order, not in order of time. Point at a bar to see its shard. Dotted lines are "
    "breaks between runs, which are left out.",
    False: "Each row is a device; of many, those with the most idle time are drawn. There are too "
    "many shards to draw each, so a bar is a time in which the device had any. Dotted lines are "
    "breaks between runs, which are left out.",
}
"""How to read the timeline, by whether each shard is a bar."""


@dataclass(frozen=True)
class Plot:
    """A picture with what it shows in words.

    ``key`` is its id in the page; ``legend`` has the class of each colour, its name and its share.
    """

    key: str
    title: str
    finding: str
    caption: str
    picture: Markup
    legend: Sequence[tuple[str, str, str]] = field(default_factory=tuple)


def _draw(
    width: int, height: int, name: str, paint: Callable[[Figure], Any], left: int = 52,
    titles: Sequence[str] = (), bottom: int = 44,
) -> Markup:  # fmt: skip
    """A figure as SVG, sized in CSS pixels, with variables as colours and titles for links."""
    with mpl.rc_context({**_STYLE, "svg.hashsalt": f"{name}{width}"}):
        figure = Figure((width / 72, height / 72))
        figure.subplots_adjust(left / width, bottom / height, 1 - 14 / width, 1 - 10 / height)
        paint(figure)
        file = io.StringIO()
        with warnings.catch_warnings(action="ignore"):  # a name may need a font that is not here
            figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    start, body = text.split(">", 1)
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r' id="[A-Za-z0-9]+_\d+"', "", body)
    body = re.sub(r' d="[^"]*"', lambda own: re.sub(r"(\.\d)\d+", r"\1", own[0]), body)
    link = r'<a xlink:href="shard:(\d+)"[^>]*>'
    titled = r'<g class="shard"><title>{}</title>'
    body = re.sub(link, lambda own: titled.format(escape(titles[int(own[1])])), body)
    body = body.replace("</a>", "</g>")
    for variable, stand_in in _COLOURS.items():
        body = body.replace(stand_in, f"var(--{variable})")
    view = re.search(r'viewBox="[^"]*"', start)
    return Markup(
        f'<svg role="img" aria-label="{escape(name)}" {view[0] if view else ""} '
        f'xmlns:xlink="http://www.w3.org/1999/xlink" style="width:{width}px">{body}'
    )


# The time of every device.


def worked(run: RunTable, moments: Any) -> np.ndarray:
    """Seconds of the run that had passed at some moments, without breaks between runs."""
    knots = np.array(run.stretches, dtype=float).reshape(-1)
    spans = np.diff(knots, prepend=knots[0])
    spans[::2] = 0
    return np.interp(np.asarray(moments, dtype=float), knots, np.cumsum(spans))


def timeline(run: RunTable) -> Plot | None:
    """When each device was at work; None if no shard is known to have been computed."""
    if run.shards.empty:
        return None
    shown = run.devices.assign(key=run.devices.index)
    if len(shown) > MOST_DEVICES:
        shown = shown.sort_values("busy", kind="stable")[:MOST_DEVICES].sort_index()
    each = len(run.shards) <= MOST_BARS and shown.lanes.max() <= _MOST_LANES
    finding = (
        f"{count(len(run.devices), 'device')} worked on {count(len(run.shards), 'shard')} for "
        f"{seconds(run.seconds)}; each was at work {_busy(run, run.devices.busy.mean())} of that "
        "time, on average."
    )
    if len(run.done):
        longest = run.done.loc[run.done.seconds.idxmax()]
        finding += f" A typical shard took {seconds(float(run.done.seconds.median()))}, "
        finding += f"the longest, {plain(longest.shard)}, {seconds(float(longest.seconds))}."
    picture = _timeline(run, shown, each)
    return Plot("timeline", "What each device did", finding, _TIMELINE[each], picture, _legend(run))


def _busy(run: RunTable, spent: float) -> str:
    """A number of seconds as a share of the run."""
    return share(spent / max(run.seconds, 1e-9))


def _legend(run: RunTable) -> list[tuple[str, str, str]]:
    """What the colours of the timeline mean, and the share of each in all devices' time."""
    idle = run.seconds * len(run.devices) - float(run.devices.busy.sum())
    idle_share = idle / max(run.seconds * len(run.devices), 1e-9)
    held = {phase: float(run.shards[f"held_{phase}"].sum()) for phase in PHASES}
    whole = max(sum(held.values()), 1e-9)
    legend = [
        (f"p{i}", PHASE_NAMES[i], share(held[phase] / whole * (1 - idle_share)))
        for i, phase in enumerate(PHASES)
        if held[phase] > 0
    ]
    if idle > 0:
        legend.append(("idle", "nothing, or an attempt that failed", share(idle_share)))
    return legend


def _timeline(run: RunTable, shown: pd.DataFrame, each: bool) -> Markup:
    unit, name = next((u, n) for u, n in ((3600, "hours"), (60, "minutes"), (1, "seconds"))
                      if run.seconds >= 3 * u or u == 1)  # fmt: skip
    titles: list[str] = []

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.spines["left"].set_visible(False)
        axes.set(yticks=[], ylim=(_ROW * len(shown), 0), xlim=(0, max(run.seconds, 1e-9) / unit))
        axes.set_xlabel(f"{name} since the first shard began")
        axes.xaxis.set_major_locator(MaxNLocator(9))
        for row, device in enumerate(shown.itertuples()):
            top, high = row * _ROW + _LABEL, _ROW - _LABEL - 4
            axes.text(0, top - 4, _cut(device.label, (WIDE - 120) // 7), color=_COLOURS["ink"],
                      fontsize=11, parse_math=False)  # fmt: skip
            axes.text(1, top - 4, f"{_busy(run, device.busy)} at work", ha="right", fontsize=11,
                      color=_COLOURS["dim"], transform=axes.get_yaxis_transform())  # fmt: skip
            axes.broken_barh([(0, run.seconds / unit)], (top, high), color=_COLOURS["idle"])
            own = run.shards[run.shards.key == device.key]
            if each:
                _bars(axes, run, own, (top, high), unit, titles)
            else:
                spans = worked(run, _merged(run, own)) / unit
                axes.broken_barh([(a, b - a) for a, b in spans], (top, high), color=_COLOURS["p3"])
        for _, end in run.stretches[:-1]:
            axes.axvline(float(worked(run, end)) / unit, color=_COLOURS["ink"], ls=":", lw=1)

    height = _ROW * len(shown) + 54
    return _draw(WIDE, height, "What each device did over time", paint, 18, titles)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _bars(
    axes: Axes, run: RunTable, own: pd.DataFrame, place: Span, unit: int, titles: list[str]
) -> None:
    """A bar for each shard, its phases from left to right; adds the title of each."""
    top, high = place[0], place[1] / (own.lane.max() + 1)
    begins, ends = worked(run, own.begin) / unit, worked(run, own.end) / unit
    for bar, begin, end in zip(own.itertuples(), begins, ends, strict=True):
        row = top + bar.lane * high, high - 1
        held = [getattr(bar, f"held_{phase}") for phase in PHASES]
        parts = dict(zip(_PHASES, held, strict=True)) if sum(held) > 0 else {}
        widths = np.array(list(parts.values())) * (end - begin) / max(sum(parts.values()), 1e-300)
        edges = begin + np.cumsum(widths) - widths
        axes.broken_barh(list(zip(edges, widths, strict=True)), row, linewidth=0, clip_on=False,
                         facecolors=[_COLOURS[name] for name in parts])  # fmt: skip
        style = ("solid", "bg") if bar.state == DONE else ("dashed", "ink")
        axes.broken_barh([(begin, end - begin)], row, facecolors="none", linewidth=1,
                         linestyle=style[0], edgecolors=_COLOURS[style[1]], clip_on=False,
                         urls=[f"shard:{len(titles)}"])  # fmt: skip
        titles.append(_title(bar, held))


def _title(bar: Any, held: Sequence[float]) -> str:
    """The text that appears when someone points at a bar."""
    so_far = "" if bar.state == DONE else " so far"
    parts = [f"{name} {seconds(spent)}" for name, spent in zip(PHASE_NAMES, held, strict=True)
             if spent > 0]  # fmt: skip
    return "\n".join([f"Shard {plain(bar.shard)}: {seconds(bar.seconds)}{so_far}", *parts])


def _merged(run: RunTable, own: pd.DataFrame) -> np.ndarray:
    """The times in which a device had shards, without pauses too short to be seen."""
    spans = np.array(joined(own))
    pauses = spans[1:, 0] - spans[:-1, 1] >= _LEAST_GAP * run.seconds
    return np.stack([spans[np.r_[True, pauses], 0], spans[np.r_[pauses, True], 1]], axis=1)


# The sum.


def heat_map(matrix: Matrix, name: str) -> Plot:
    """The matrix as a picture."""
    rows, columns = matrix.shape
    cells, factor = matrix.cells, 1.0
    finite = cells[np.isfinite(cells)]
    finding = "No element is finite."
    if matrix.low <= matrix.high:
        finding = f"Elements lie between {matrix.low:.8g} and {matrix.high:.8g}."
    if matrix.nonfinite:
        finding += f" {count(matrix.nonfinite, 'element')} NaN or infinite, in magenta."
    if cells.shape != matrix.shape:
        finding += f" {cells.shape[0]} × {cells.shape[1]} evenly spaced elements are shown."
    largest = float(np.abs(finite).max(initial=0.0))
    if largest > 1e100 or 0 < largest < 1e-100:  # beyond what a colour scale can compute with
        factor = 10.0 ** np.floor(np.log10(largest))
        cells, finite = cells / factor, finite / factor
    norm, colours = colour_scale(finite)
    height = round(270 * min(max(rows / columns, 0.5), 2.0)) + 104

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot(xlabel="column", ylabel="row")
        map_ = mpl.colormaps[colours].with_extremes(bad="#ff00c8")
        image = axes.imshow(
            cells, map_, norm, aspect="auto", interpolation="none", extent=(0, columns, rows, 0)
        )
        bar = figure.colorbar(image, ax=axes, extend="both", location="bottom", fraction=0.05,
                              pad=52 / height, aspect=25)  # fmt: skip
        bar.set_ticks(np.unique([norm.inverse(at) for at in (0, 0.5, 1)]))
        bar.ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v * factor:.3g}"))
        ends = bar.ax.get_xticklabels()
        ends[0].set_ha("left")  # centred, a long one would lie beyond the edge
        ends[-1].set_ha("right")
        bar.outline.set_visible(False)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(4, integer=True))

    caption = (
        "A cell is an element (for complex numbers its absolute value); a large matrix is shown in "
        f"part. At most {100 * _CLIPPED:g} % of the cells lie beyond each end of the colour scale."
    )
    title = f"{name}, {rows:,} × {columns:,}"
    picture = _draw(NARROW, height, f"Heat map of {name}", paint, bottom=22)
    return Plot("sum", title, finding, caption, picture)


def colour_scale(found: np.ndarray) -> tuple[Normalize, str]:
    """A scale on which most finite cells differ in colour, whatever the outliers are.

    It is symmetric about zero if there are both signs, and linear near zero but logarithmic beyond
    if its end is far above the typical cell.
    """
    found = found if found.size else np.zeros(1)
    low, high = (float(end) for end in np.quantile(found, (_CLIPPED, 1 - _CLIPPED)))
    if low == high:
        return Normalize(low - (abs(low) or 1.0), high + (abs(high) or 1.0)), "cividis"
    end, typical = max(abs(low), abs(high)), float(np.median(np.abs(found[found != 0])))
    scale = AsinhNorm(typical) if end > _BENT * typical else Normalize()
    signed = low < 0 < high
    scale.vmin, scale.vmax = (-end, end) if signed else (low, high)
    return scale, "RdBu_r" if signed else "cividis"
