"""The picture of ``sum.npy`` on the page: read in slabs, never all at a time, drawn as SVG.

Colours of lines and text become variables of the page's style, so that one drawing serves light,
dark and paper.
"""

import io
import re
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from markupsafe import Markup, escape
from matplotlib.colors import AsinhNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from shardwise.errors import InputError
from shardwise.units import count

MOST_CELLS = 256
"""The most rows, and columns, of the picture."""

_SLAB_BYTES = 8 * 1024**2
_WIDTH = 350  # CSS pixels: it fits a phone
_CLIPPED = 0.005  # the share of cells that may lie beyond an end of the colour scale
_BENT = 30.0  # times the typical cell: if the scale ends beyond, it is asinh
_COLOURS = {"ink": "#00fed0", "dim": "#01fed1"}
"""Placeholder colours, by the names of the style's variables."""

_STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "sum", "image.composite_image": False,
    "font.size": 12, "axes.spines.top": False, "axes.spines.right": False,
    "figure.facecolor": "none", "axes.facecolor": "none", "axes.edgecolor": _COLOURS["dim"],
    "text.color": _COLOURS["ink"], "axes.labelcolor": _COLOURS["dim"],
    "xtick.color": _COLOURS["dim"], "ytick.color": _COLOURS["dim"], "figure.dpi": 72,
    "axes.formatter.use_mathtext": False, "axes.unicode_minus": False,
}  # fmt: skip


@dataclass(frozen=True)
class Matrix:
    """A matrix as a picture, and in a few numbers of all its elements."""

    shape: tuple[int, int]
    # Elements, float64 ``(rows, columns)``, or their moduli if they are complex.
    cells: np.ndarray
    low: float  # the least of the finite elements, or moduli; infinite if none is finite
    high: float  # the greatest
    nonfinite: int  # how many elements are NaN or infinite

    @property
    def finding(self) -> str:
        """What the picture shows, in words."""
        words = "No element is finite."
        if self.low <= self.high:
            words = f"Elements lie between {self.low:.8g} and {self.high:.8g}."
        if self.nonfinite:
            words += f" {count(self.nonfinite, 'element')} NaN or infinite, in magenta."
        if self.cells.shape != self.shape:
            rows, columns = self.cells.shape
            words += f" {rows} × {columns} evenly spaced elements are shown."
        return words


def read(path: Path) -> Matrix:
    """Read a matrix; its picture has evenly spaced rows and columns, all of a small matrix.

    Raises InputError if it is missing, damaged, or no matrix in the order of rows.
    """
    try:
        array = np.load(path, "r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if array.ndim != 2 or not array.size or not array.flags.c_contiguous:
        raise InputError(f"{path} is not a matrix in C order, but of shape {array.shape}")
    rows, columns = array.shape
    down, across = (np.arange(min(n, MOST_CELLS)) * n // min(n, MOST_CELLS) for n in array.shape)
    low, high, nonfinite = np.inf, -np.inf, 0
    at_once = max(1, _SLAB_BYTES // (columns * array.itemsize))
    for first in range(0, rows, at_once):
        values = _real(array[first : first + at_once])
        finite = np.isfinite(values)
        nonfinite += finite.size - int(finite.sum())
        low = min(low, float(values.min(where=finite, initial=np.inf)))
        high = max(high, float(values.max(where=finite, initial=-np.inf)))
    return Matrix((rows, columns), _real(array[np.ix_(down, across)]), low, high, nonfinite)


def _real(values: np.ndarray) -> np.ndarray:
    return np.abs(values) if values.dtype.kind == "c" else values.astype(np.float64)


def draw(matrix: Matrix, name: str) -> Markup:
    """The matrix as a heat map, in SVG."""
    rows, columns = matrix.shape
    cells, factor = matrix.cells, 1.0
    finite = cells[np.isfinite(cells)]
    largest = float(np.abs(finite).max(initial=0.0))
    if largest > 1e100 or 0 < largest < 1e-100:  # beyond what a colour scale can compute with
        factor = 10.0 ** np.floor(np.log10(largest))
        cells, finite = cells / factor, finite / factor
    norm, colours = colour_scale(finite)
    height = round(270 * min(max(rows / columns, 0.5), 2.0)) + 104
    with mpl.rc_context(_STYLE):
        figure = Figure((_WIDTH / 72, height / 72))
        figure.subplots_adjust(52 / _WIDTH, 22 / height, 1 - 14 / _WIDTH, 1 - 10 / height)
        axes = figure.add_subplot(xlabel="column", ylabel="row")
        image = axes.imshow(
            cells, mpl.colormaps[colours].with_extremes(bad="#ff00c8"), norm, aspect="auto",
            interpolation="none", extent=(0, columns, rows, 0),
        )  # fmt: skip
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
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    start, body = text[text.index("<svg") :].split(">", 1)
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", body, flags=re.DOTALL)
    for variable, stand_in in _COLOURS.items():
        body = body.replace(stand_in, f"var(--{variable})")
    view = re.search(r'viewBox="[^"]*"', start)
    return Markup(
        f'<svg role="img" aria-label="Heat map of {escape(name)}" {view[0] if view else ""} '
        f'xmlns:xlink="http://www.w3.org/1999/xlink" style="width:{_WIDTH}px">{body}'
    )


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
