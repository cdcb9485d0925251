"""The page on a run: what a results folder shows, put into its template, with a picture of the sum.

Every value is text that the template makes one line and escapes, except what is marked here as
HTML. Figures of the run for Prometheus are written with it.
"""

import base64
import io
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.image import imsave

from shardwise import __version__
from shardwise.errors import one_line
from shardwise.files.commit import commit
from shardwise.observe import metrics
from shardwise.observe.status import DONE, Status, busy
from shardwise.units import clock, count, human_bytes, seconds

_PHASES = {"read": "reading the input", "compute": "computing", "write": "writing the result"}
_MOST_CELLS = 256  # rows, and columns, of the picture
_CLIPPED = 0.005  # the share of cells that may lie beyond an end of the colour scale


def write(seen: Status) -> Path:
    """Commit ``report.html`` and ``metrics.prom``; return the path of the first."""
    results = seen.results
    for path, text in ((results.report, render(seen)), (results.metrics, metrics.text(seen))):
        with commit(path) as file:
            file.write(text.encode("utf-8", "replace"))
    return results.report


def render(seen: Status) -> str:
    """The page as text; of the results, it reads only the sum."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        loader=jinja2.FileSystemLoader(Path(__file__).parent, "utf-8"),
        finalize=lambda value: value if isinstance(value, Markup) else one_line(str(value)),
    )  # fmt: skip
    results, summary, done = seen.results, seen.summary, seen.of(DONE)
    paths = [results.statistic(name) for name in summary.files] if summary else []
    files = filter(Path.exists, [*paths, results.summary, results.ledger] if paths else [])
    name, words, picture = _show_sum(seen)
    return environment.get_template("page.html.j2").render(
        seen=seen, name=name, words=words, picture=picture,
        title=f"Shardwise: {results.root.resolve().name}", at=clock(seen.at), version=__version__,
        files=[(link(path.name), path, human_bytes(path.stat().st_size)) for path in files],
        load=f"np.load({str(paths[0])!r})" if paths else "", facts=_facts(seen),
        took=seconds(busy(done)), phases=_PHASES, bars=_bars(seen),
        failed=[
            (name, why.reason, why.device or "", why.host, why.attempt, link(why.log or ""))
            for name, why in seen.failed
        ],
    )  # fmt: skip


def link(path: str) -> str:
    """A path below the results folder as a relative link, never as any other address."""
    address = quote(path.encode("utf-8", "surrogateescape"), safe="/")
    return path and Markup('<a href="./{}">{}</a>').format(address, one_line(path))


def _facts(seen: Status) -> list[tuple[str, Any]]:
    """What the run computes, and how."""
    pairs: list[tuple[str, Any]] = [("results folder", seen.results.root)]
    if plan := seen.plan:
        problem, (rows, columns) = plan.problem, plan.problem.left
        nbytes = human_bytes(problem.matrices * problem.matrix_bytes)
        size = f"{problem.matrices:,} of {rows:,} × {columns:,}, {problem.dtype}, {nbytes}"
        pairs += [("matrices", size)]
        # What is named above, is in `shards`, or was not used.
        left_out = {"results", "shard_bytes", *(() if plan.facts.synthetic else ("synthetic",))}
        said = plan.facts.config.items()
        pairs += [(key, value) for key, value in said if value and key not in left_out]
        pairs += [("note", note) for note in plan.facts.notes]
    return pairs


def _bars(seen: Status) -> list[tuple[str, ...]]:
    """By device, a bar of how it spent its time, and figures."""
    figures, rows = defaultdict[str, Counter[str]](Counter), []
    took = busy(seen.of(DONE))
    for own in seen.of(DONE):
        figures[own.device.label].update({"shards": 1, "bytes": own.bytes, **own.held})
    for device, found in sorted(figures.items()):
        work = max(sum(found[phase] for phase in _PHASES), 1e-9)
        whole = max(took, work)  # on a CPU several shards may be at work at once
        spent = {phase: found[phase] / whole for phase in _PHASES}
        bar = Markup("").join(
            Markup('<i class="{}" style="width:{:.2%}"></i>').format(phase, share)
            for phase, share in (spent | {"idle": 1 - work / whole}).items()
        )
        words = ", ".join(f"{_PHASES[phase]} {share:.0%}" for phase, share in spent.items())
        drawn = Markup('<span class="bar" role="img" aria-label="{0}" title="{0}">{1}</span>')
        pace, shards = f"{human_bytes(found['bytes'] / work)}/s", f"{found['shards']:,.0f}"
        rows.append((device, drawn.format(words, bar), f"{work / whole:.0%}", shards, pace))
    return rows


def _show_sum(seen: Status) -> tuple[str, str, Markup]:
    """The file of the sum, words on it, and its picture; or why there is none."""
    for name in ("sum", "mean"):
        if seen.summary and name in seen.summary.files:
            try:
                return f"{name}.npy", *draw(read(seen.results.statistic(name)))
            except (OSError, ValueError) as error:
                return "", f"The sum cannot be shown: {error}", Markup("")
    words = "There is no sum yet."
    if seen.summary:
        words = f"There is no sum or mean of all products, but {', '.join(seen.summary.files)}."
    return "", words, Markup("")


def read(path: Path) -> np.ndarray:
    """Evenly spaced rows and columns of a matrix, all of a small one; moduli of complex numbers."""
    array = np.load(path, "r", allow_pickle=False)
    places = [np.arange(min(n, _MOST_CELLS)) * n // min(n, _MOST_CELLS) for n in array.shape]
    cells = array[np.ix_(*places)]
    return np.abs(cells) if cells.dtype.kind == "c" else cells.astype(np.float64)


def draw(cells: np.ndarray) -> tuple[str, Markup]:
    """Words on a matrix ``(rows, columns)``, and its heat map; few cells lie beyond its colours."""
    finite = cells[np.isfinite(cells)]
    if not finite.size:
        return "No element is finite.", Markup("")
    low, high = np.quantile(finite, (_CLIPPED, 1 - _CLIPPED))
    words = f"These elements lie between {finite.min():.8g} and {finite.max():.8g}. "
    words += f"Dark blue is {low:.3g}, yellow is {high:.3g}."
    if finite.size < cells.size:
        words += f" {count(cells.size - finite.size, 'element')} NaN or infinite, in magenta."
    file, colours = io.BytesIO(), mpl.colormaps["cividis"].with_extremes(bad="#ff00c8")
    cells = np.where(np.isfinite(cells), cells, np.nan)
    with np.errstate(over="ignore"):  # of cells far beyond the colours
        imsave(file, cells, vmin=low, vmax=high, cmap=colours, format="png")
    image = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return words, Markup('<img class="heat" alt="Heat map of the sum" src="{}">').format(image)
