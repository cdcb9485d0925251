"""The sum as a picture, and the spectrum of its rows."""

from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from shardwise.observe.report import colours, words
from shardwise.observe.report.matrix import Matrix
from shardwise.observe.report.parts import (
    WIDTH,
    Figure,
    Table,
    Ticks,
    framed,
    line,
    log_axis,
    svg,
    trim,
)

_CLIPPED = 0.005
"""The share of cells that may lie beyond an end of the scale: outliers shall not take all of it."""

_BENT = 30.0
"""How far the end of the scale may lie beyond the typical cell before the scale is bent."""

_LONGEST = 2.0
"""How many times as long as wide the picture is at most."""

_POINTS = 500
_HEIGHT = 220.0
_TABLE_ROWS = 12


@dataclass(frozen=True)
class Scale:
    """How numbers become colours.

    Attributes
    ----------
    low, high
        The numbers at its ends; what lies beyond has the colour of the end.
    signed
        Whether it has both signs: symmetric about zero then.
    bend
        Below it the scale is linear, far above logarithmic; None where it is all linear.
    """

    low: float
    high: float
    signed: bool
    bend: float | None

    def place(self, values: np.ndarray) -> np.ndarray:
        """Where numbers lie on it, 0 to 1."""
        if self.bend is None:
            return np.clip((values - self.low) / (self.high - self.low), 0, 1)
        bent = np.arcsinh(values / self.bend)
        low, high = np.arcsinh(self.low / self.bend), np.arcsinh(self.high / self.bend)
        return np.clip((bent - low) / (high - low), 0, 1)

    def value(self, place: float) -> float:
        """The number at a place."""
        if self.bend is None:
            return self.low + place * (self.high - self.low)
        low, high = np.arcsinh(self.low / self.bend), np.arcsinh(self.high / self.bend)
        return float(np.sinh(low + place * (high - low)) * self.bend)


def scale_of(cells: np.ndarray) -> Scale:
    """A scale on which the bulk of the cells is told apart, whatever the outliers are."""
    found = cells[np.isfinite(cells)]
    if not found.size:
        return Scale(0.0, 1.0, False, None)
    signed = bool((found < 0).any() and (found > 0).any())
    moduli = np.abs(found)
    end = float(np.quantile(moduli, 1 - _CLIPPED)) or float(moduli.max()) or 1.0
    # Where nearly all cells are zero, the typical one is that of the others.
    typical = float(np.median(moduli[moduli > 0])) if (moduli > 0).any() else end
    bend = typical if end > _BENT * typical else None
    if signed:
        return Scale(-end, end, True, bend)
    if bend is not None:
        ends = (0.0, end) if found.max() > 0 else (-end, 0.0)
        return Scale(*ends, False, bend)
    low, high = (float(np.quantile(found, q)) for q in (_CLIPPED, 1 - _CLIPPED))
    if high <= low:
        low, high = float(found.min()), float(found.max())
    if high <= low:
        low, high = low - (abs(low) or 1.0), high + (abs(high) or 1.0)
    return Scale(low, high, False, None)


def figure(matrix: Matrix, name: str = "sum.npy") -> Figure:
    """The heat map with its legend."""
    cells = matrix.cells
    scale = scale_of(cells)
    palette = colours.diverging() if scale.signed else colours.sequential()
    places = scale.place(np.nan_to_num(cells)) * (colours.LEVELS - 1)
    indices = np.where(np.isfinite(cells), np.round(places), colours.LEVELS).astype(np.uint8)
    seen = _finding(matrix)
    rows, columns = matrix.shape
    aspect = min(max(columns / rows, 1 / _LONGEST), _LONGEST)
    body = Markup(
        '<div class=heat><div class=map style="--wide:{};aspect-ratio:{}">'
        '<img src="{}" alt="{}" width={} height={}></div>{}</div>'
    ).format(
        f"{min(1.0, aspect):.3f}", f"{aspect:.4f}",
        colours.address(colours.png(indices, palette)), f"Heat map of {name}. {seen}",
        cells.shape[1], cells.shape[0], _legend(scale, palette, cells),
    )  # fmt: skip
    caption = _caption(matrix, scale, seen)
    return Figure("sum", f"{name}, {rows:,} × {columns:,}", body, caption, _quantiles(matrix))


def _legend(scale: Scale, palette: np.ndarray, cells: np.ndarray) -> Markup:
    """The colours, with numbers; an end beyond which cells lie says so."""
    bar = colours.address(colours.png(np.arange(colours.LEVELS, dtype=np.uint8)[None], palette))
    found = cells[np.isfinite(cells)]
    below, above = int((found < scale.low).sum()), int((found > scale.high).sum())
    labels = [f"{scale.value(place):.3g}" for place in (0, 0.25, 0.5, 0.75, 1)]
    labels[0] = f"≤ {labels[0]}" if below else labels[0]
    labels[-1] = f"≥ {labels[-1]}" if above else labels[-1]
    spans = Markup("").join(Markup("<span>{}</span>").format(label) for label in labels)
    missing = int(np.isnan(cells).sum())
    extra = Markup("")
    if missing:
        extra = Markup("<p class=note><i class=missing></i>NaN or Inf: {}</p>").format(
            words.count(missing, "cell")
        )
    return Markup(
        '<div class=scale><img src="{}" alt="Colour scale from {} to {}">'
        "<div class=ends>{}</div>{}</div>"
    ).format(bar, labels[0], labels[-1], spans, extra)


def _finding(matrix: Matrix) -> str:
    """What the picture shows, for who cannot see it."""
    if matrix.low is None or matrix.high is None:
        return "No element is finite."
    what = "Moduli" if matrix.complex else "Elements"
    told = f"{what} lie between {matrix.low:.4g} and {matrix.high:.4g}"
    peak = np.nanargmax(np.abs(matrix.cells)) if np.isfinite(matrix.cells).any() else 0
    row, column = (
        int(i * size)
        for i, size in zip(np.unravel_index(peak, matrix.cells.shape), matrix.blocks, strict=True)
    )
    told += f"; the strongest cell begins at row {row:,}, column {column:,}"
    if matrix.nonfinite:
        told += f"; {words.count(matrix.nonfinite, 'element')} NaN or infinite"
    return told + "."


def _caption(matrix: Matrix, scale: Scale, seen: str) -> str:
    high, wide = matrix.blocks
    told = [seen]
    what = "modulus" if matrix.complex else "value"
    if max(high, wide) > 1:
        told.append(
            f"A cell is the mean {what} of a block of {high:.4g} × {wide:.4g} elements, so a "
            "single outlier is weaker here than it is: the table of the elements has the extremes."
        )
    else:
        told.append(f"A cell is the {what} of one element.")
    if matrix.step > 1:
        told.append(f"The file is large: one row of {matrix.step} was read.")
    told.append("Row 0 is at the top.")
    if not 1 / _LONGEST <= matrix.shape[1] / matrix.shape[0] <= _LONGEST:
        told.append("The picture is stretched: its elements are not square.")
    told.append(
        f"The scale ends where {100 * _CLIPPED:g} % of the cells lie beyond, so that outliers "
        "leave colours to the others"
        + (", and is logarithmic but near zero." if scale.bend else ".")
    )
    return " ".join(told)


def _quantiles(matrix: Matrix) -> Table:
    """How the cells are spread."""
    found = matrix.cells[np.isfinite(matrix.cells)]
    shares = (0, 0.005, 0.05, 0.25, 0.5, 0.75, 0.95, 0.995, 1)
    rows = [[f"{100 * q:g} % of the cells lie below", f"{np.quantile(found, q):.6g}"]
            for q in shares] if found.size else []  # fmt: skip
    return Table(["cells", "value"], rows)


def spectrum(matrix: Matrix) -> Figure:
    """The norms of the rows, sorted and as they come."""
    norms = matrix.norms
    good = norms[np.isfinite(norms) & (norms > 0)]
    seen = _norms_finding(norms, good)
    if not good.size:
        return Figure("spectrum", "Norms of the rows", Markup("<p>{}</p>").format(seen), seen)
    low, high, left = log_axis(float(good.min()), float(good.max()), 7)
    ordered = np.sort(np.where(np.isfinite(norms), norms, 0.0))[::-1]
    drawn = [
        f'<path class=thin d="{_curve(norms, low, high)}"/>',
        f'<path class=line d="{_curve(ordered, low, high)}"/>',
    ]
    last = len(norms) - 1
    places = sorted({0, last // 2, last})
    below = Ticks([(i / max(last, 1), f"{i * matrix.step:,}") for i in places])
    body = framed(svg("spectrum", _HEIGHT, drawn, "Norms of the rows", seen, "curve"), below, left,
                  "row")  # fmt: skip
    legend = Markup(
        "<ul class=legend><li><i class=kline></i>sorted, the largest first"
        "<li><i class=kthin></i>in the order of the rows</ul>"
    )
    caption = (
        f"{seen} The Euclidean norm of each row, on a logarithmic axis. A curve that falls steeply "
        "says that few rows carry the sum; a gap or a step, that rows are of different kinds."
    )
    table = _ranks(norms, matrix.step)
    return Figure("spectrum", "Norms of the rows", legend + body, caption, table)


def _norms_finding(norms: np.ndarray, good: np.ndarray) -> str:
    zero, wild = int((norms == 0).sum()), int((~np.isfinite(norms)).sum())
    told = []
    if good.size:
        told.append(
            f"Row norms lie between {good.min():.4g} and {good.max():.4g}, half of them below "
            f"{np.median(good):.4g}"
        )
    if zero:
        told.append(f"{words.count(zero, 'row')} all zero")
    if wild:
        told.append(f"{words.count(wild, 'row')} with NaN or Inf")
    return "; ".join(told) + "."


def _curve(norms: np.ndarray, low: float, high: float) -> str:
    """A line through the norms; of many, from the least to the greatest of each stretch."""
    with np.errstate(divide="ignore"):
        heights = np.log10(np.where(np.isfinite(norms), norms, 0))
    heights = _HEIGHT * (1 - (np.clip(heights, low, high) - low) / (high - low))
    if len(heights) == 1:
        return f"M0 {trim(float(heights[0]))}h{WIDTH}"
    places = np.linspace(0, WIDTH, len(heights))
    if len(heights) > _POINTS:
        edges = np.arange(_POINTS) * len(heights) // _POINTS
        tops, ends = np.minimum.reduceat(heights, edges), np.maximum.reduceat(heights, edges)
        at = places[edges]
        return line([point for x, a, b in zip(at, tops, ends, strict=True)
                     for point in ((float(x), float(a)), (float(x), float(b)))])  # fmt: skip
    return line(zip(map(float, places), map(float, heights), strict=True))


def _ranks(norms: np.ndarray, step: int) -> Table:
    order = np.argsort(-np.nan_to_num(norms, posinf=np.inf), kind="stable")[:_TABLE_ROWS]
    rows = [[f"{int(row) * step:,}", f"{float(norms[row]):.6g}"] for row in order]
    return Table(["row", "norm"], rows, note=f"The {len(rows)} rows of the largest norms.")


def statistics(matrix: Matrix) -> list[tuple[str, str]]:
    """The numbers of the table of statistics."""
    what = " modulus" if matrix.complex else ""
    rows = f" of every {matrix.step}th row" if matrix.step > 1 else ""
    mean = matrix.mean
    told = [mean.real, mean.imag] if isinstance(mean, complex) else mean
    return [
        (f"least{what}{rows}", words.DASH if matrix.low is None else f"{matrix.low:.8g}"),
        (f"greatest{what}{rows}", words.DASH if matrix.high is None else f"{matrix.high:.8g}"),
        (f"mean{rows}", words.DASH if told is None else words.figure(told)),
        (f"Frobenius norm{rows}", f"{matrix.norm:.8g}"),
        (f"NaN or infinite elements{rows}", f"{matrix.nonfinite:,}"),
    ]
