"""What the page is made of: figures, each with a caption and a table, in HTML that is escaped.

A plot is an SVG that fills its box whatever its shape; all text stands beside it in HTML, so it is
as large on a phone as on a wall.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

WIDTH = 1000
"""Of every plot, in its own units."""

Cell = str | Markup

_LEAST = 1e-306
"""Of a logarithmic axis: powers of ten below it lose their digits, or are 0."""


@dataclass(frozen=True)
class Table:
    """Numbers as rows.

    Attributes
    ----------
    heads
        Of the columns; the first names the row.
    rows
        Cells of text.
    texts
        Numbers of columns, beside the first, that hold words rather than figures.
    note
        What is left out, if anything.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    texts: frozenset[int] = frozenset()
    note: str = ""
    filtered: bool = False

    def __html__(self) -> str:
        """As HTML. End tags that HTML does not need are left out: there may be 10,000 rows."""
        heads = "".join(
            f"<th scope=col{self._class(i)}>{escape(head)}" for i, head in enumerate(self.heads)
        )
        lines = [f"<thead><tr>{heads}<tbody>"]
        for first, *others in self.rows:
            cells = "".join(
                f"<td{self._class(i)}>{escape(cell)}" for i, cell in enumerate(others, 1)
            )
            lines.append(f"<tr><th scope=row>{escape(first)}{cells}")
        note = f"<p class=note>{escape(self.note)}</p>" if self.note else ""
        mark = " data-filter" if self.filtered and len(self.rows) > 12 else ""
        body = "\n".join(lines)
        return f'<div class=scroll tabindex=0><table{mark}>{body}</table></div>{note}'  # fmt: skip

    def _class(self, column: int) -> str:
        return " class=t" if column == 0 or column in self.texts else ""


@dataclass(frozen=True)
class Figure:
    """A picture with what it shows in words, and its numbers.

    Attributes
    ----------
    key
        Its id in the page.
    title
        A few words above it.
    body
        The picture.
    caption
        What to see in it, and how it is drawn.
    table
        Its numbers, folded away.
    table_name
        What unfolds them.
    """

    key: str
    title: str
    body: Markup
    caption: Cell
    table: Table | None = None
    table_name: str = "The numbers as a table"


@dataclass(frozen=True)
class Ticks:
    """Labels along an axis, each at a share of its length."""

    marks: Sequence[tuple[float, str]] = field(default_factory=tuple)

    def across(self) -> Markup:
        """Below a plot."""
        made = []
        for i, (at, label) in enumerate(self.marks):
            edge = " e" if at > 0.93 else " b" if at < 0.07 else ""
            odd = " odd" if i % 2 else ""
            made.append(
                f'<span class="x{edge}{odd}" style="left:{100 * at:.2f}%">{escape(label)}</span>'
            )
        return Markup(f"<div class=xs aria-hidden=true>{''.join(made)}</div>")

    def upwards(self) -> Markup:
        """Left of a plot."""
        made = [
            f'<span class=y style="bottom:{100 * at:.2f}%">{escape(label)}</span>'
            for at, label in self.marks
        ]
        return Markup(f"<div class=ys aria-hidden=true>{''.join(made)}</div>")


def svg(
    key: str, height: float, body: Iterable[str], title: str, finding: str, kind: str = ""
) -> Markup:
    """A plot of :data:`WIDTH` by ``height`` units that takes the shape of its box.

    Parameters
    ----------
    key
        Prefix of the ids of its title and its description.
    title, finding
        What it is, and what it shows, for who cannot see it.
    kind
        Its CSS classes.
    """
    names = f"{escape(key)}-t {escape(key)}-d"
    return Markup(
        f'<svg class="plot {escape(kind)}" role=img aria-labelledby="{names}" '
        f'viewBox="0 0 {WIDTH} {trim(height)}" preserveAspectRatio=none>'
        f"<title id={escape(key)}-t>{escape(title)}</title>"
        f"<desc id={escape(key)}-d>{escape(finding)}</desc>{''.join(body)}</svg>"
    )


def framed(plot: Markup, below: Ticks, left: Ticks | None = None, under: str = "") -> Markup:
    """A plot with its axes.

    Parameters
    ----------
    under
        What the axis below counts.
    """
    upwards = left.upwards() if left else ""
    name = Markup("<div class=xname>{}</div>").format(under) if under else ""
    kind = "framed withy" if left else "framed"
    return Markup('<div class="{}">{}<div class=area>{}</div>{}{}</div>').format(
        kind, upwards, plot, below.across(), name
    )


def rectangle(x: float, y: float, width: float, height: float) -> str:
    """Path data of a rectangle, as short as it can be."""
    return f"M{trim(x)} {trim(y)}h{trim(width)}v{trim(height)}h-{trim(width)}z"


def line(points: Iterable[tuple[float, float]]) -> str:
    """Path data of a line through points."""
    return "M" + "L".join(f"{trim(x)} {trim(y)}" for x, y in points)


def trim(value: float) -> str:
    """A coordinate in few characters."""
    text = f"{value:.3f}".rstrip("0").rstrip(".")
    return text if text != "-0" else "0"


def time_ticks(length: float, most: int = 6) -> list[tuple[float, str]]:
    """Round moments from 0 to a length in seconds, as shares of it, with their labels."""
    if length <= 0:
        return [(0.0, "0")]
    steps = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200)
    if length / most < 1:
        step: float = nice_step(length / most)
    else:
        step = next((s for s in steps if length / s <= most), 0) or 86400 * nice_step(
            length / most / 86400
        )
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    size, unit = next(((s, u) for s, u in units if step >= s), (1, "s"))
    return [
        (i * step / length, f"{i * step / size:.4g} {unit}" if i else "0")
        for i in range(int(length / step + 1e-9) + 1)
    ]


def nice_step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not below a number."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * own for own in (1, 2, 5, 10) if power * own >= least * (1 - 1e-9))


def log_axis(low: float, high: float, most: int = 6) -> tuple[float, float, Ticks]:
    """A logarithmic axis around two positive numbers: the exponents at its ends, and its labels.

    It begins and ends at 1, 2 or 5 times a power of ten, and is labelled at these while they are
    few, else at powers of ten.
    """
    low, high = min(max(low, _LEAST), 1 / _LEAST), min(max(high, _LEAST), 1 / _LEAST)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    fine = [own * 10.0**e for e in range(first, last + 1) for own in (1, 2, 5)]
    begin = max(value for value in fine if value <= low * (1 + 1e-9))
    end = min((value for value in fine if value >= high), default=fine[-1])
    if end <= begin:
        end = fine[fine.index(begin) + 1] if begin < fine[-1] else 2 * begin
    marks = [value for value in fine if begin <= value <= end]
    if len(marks) > most:
        step = max(1, math.ceil((last - first + 1) / most))
        marks = [10.0**e for e in range(first, last + 1, step) if begin <= 10.0**e <= end]
    lower, upper = math.log10(begin), math.log10(end)
    places = [((math.log10(value) - lower) / (upper - lower), _power(value)) for value in marks]
    return lower, upper, Ticks(places)


def _power(value: float) -> str:
    """A label that is short for numbers of any size."""
    if 1e-3 <= value < 1e5:
        return f"{value:,.0f}" if value >= 1 else f"{value:g}"
    digit, exponent = f"{value:.0e}".split("e")
    return f"{digit}e{int(exponent)}"
