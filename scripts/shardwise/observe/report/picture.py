"""The picture of ``sum.npy`` on the page: a heat map of at most 256 rows and columns, as a PNG."""

import base64
import io
from pathlib import Path

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.image import imsave

from shardwise.units import count

MOST_CELLS = 256
"""The most rows, and columns, of the picture."""

_CLIPPED = 0.005  # the share of cells that may lie beyond an end of the colour scale


def read(path: Path) -> np.ndarray:
    """Evenly spaced rows and columns of a matrix, all of a small one; moduli of complex numbers."""
    array = np.load(path, "r", allow_pickle=False)
    places = [np.arange(min(n, MOST_CELLS)) * n // min(n, MOST_CELLS) for n in array.shape]
    cells = array[np.ix_(*places)]
    return np.abs(cells) if cells.dtype.kind == "c" else cells.astype(np.float64)


def describe(cells: np.ndarray) -> str:
    """What the picture shows, in words."""
    finite = cells[np.isfinite(cells)]
    words = "No element is finite."
    if finite.size:
        words = f"These elements lie between {finite.min():.8g} and {finite.max():.8g}."
    if finite.size < cells.size:
        words += f" {count(cells.size - finite.size, 'element')} NaN or infinite, in magenta."
    return words


def draw(cells: np.ndarray, name: str) -> Markup:
    """The heat map with its colour scale, in HTML.

    The scale is symmetric about zero if there are both signs; few cells lie beyond its ends.
    """
    cells = np.where(np.isfinite(cells), cells, np.nan)
    finite, colours = cells[np.isfinite(cells)], "cividis"
    low, high = np.quantile(finite, (_CLIPPED, 1 - _CLIPPED)) if finite.size else (0.0, 0.0)
    if low < 0 < high:
        low, high, colours = min(low, -high), max(high, -low), "RdBu_r"
    middle, half = high / 2 + low / 2, (high / 2 - low / 2) or 1.0
    with np.errstate(over="ignore"):  # of cells far beyond the scale
        heat = _png((cells - middle) / half, colours)
    scale = _png(np.linspace(-1.0, 1.0, 256)[np.newaxis], colours)
    return Markup(
        '<img class="heat" alt="Heat map of {}" src="{}">'
        '<p class="scale">{:.3g} <img alt="to" src="{}"> {:.3g}</p>'
    ).format(name, heat, low, scale, high)


def _png(places: np.ndarray, colours: str) -> str:
    """The data URL of an image of values on the scale, which goes from -1 to 1."""
    file, colour_map = io.BytesIO(), mpl.colormaps[colours].with_extremes(bad="#ff00c8")
    imsave(file, places, vmin=-1.0, vmax=1.0, cmap=colour_map, format="png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
