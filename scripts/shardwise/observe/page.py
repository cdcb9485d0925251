"""The page on a run: what a results folder shows, put into its template, with a picture of the sum.

Every value is text that the template escapes; only what is made here is marked as HTML.
"""

import base64
import io
from collections import Counter, defaultdict
from pathlib import Path
from urllib.parse import quote

import jinja2
import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.image import imsave

from shardwise import __version__
from shardwise.errors import one_line
from shardwise.files.commit import commit
from shardwise.observe.status import Status, busy
from shardwise.units import clock, count, human_bytes, seconds

_PHASES = {"read": "reading the input", "compute": "computing", "write": "writing the result"}
_MOST_CELLS = 256  # rows, and columns, of the picture
_CLIPPED = 0.005  # the share of cells that may lie beyond an end of the colour scale

Rows = list[list[str | Markup]]
"""The first cell of each row names it; the template escapes and draws them."""


def write(seen: Status) -> Path:
    """Commit the page, ``report.html`` in the results folder."""
    page = render(seen)
    with commit(seen.results.report) as file:
        file.write(page.encode("utf-8", "replace"))
    return seen.results.report


def render(seen: Status) -> str:
    """The page as text; of the results, it reads only the sum."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        loader=jinja2.FileSystemLoader(Path(__file__).parent, "utf-8"),
    )  # fmt: skip
    (name, words, picture), (results, load) = _show_sum(seen), _files(seen)
    return environment.get_template("page.html.j2").render(
        seen=seen, name=name, words=words, picture=picture,
        first_line=seen.verdict.words.partition(". "),
        title=plain(f"Shardwise: {seen.results.root.resolve().name}"),
        at=clock(seen.at), version=__version__, verify="shardwise verify",
        files=results, load=load, facts=_facts(seen),
        took=seconds(busy(seen.done)), phases=_PHASES, bars=_bars(seen),
        failed=_failed(seen), remarks=[*map(plain, seen.remarks)],
    )  # fmt: skip


def plain(value: object) -> str:
    """Any value as one line of printable text of limited length."""
    return one_line(str(value))[:600]


def link(path: str | None) -> str:
    """A path below the results folder as a relative link, never as any other address."""
    if not path:
        return ""
    address = "./" + quote(path.encode("utf-8", "surrogateescape"), safe="/")
    return Markup('<a href="{}">{}</a>').format(address, plain(path))


def _facts(seen: Status) -> list[tuple[str, str]]:
    """What the run computes, and how."""
    pairs = [("results folder", plain(seen.results.root))]
    if plan := seen.plan:
        (rows, columns), matrices = plan.problem.left, plan.problem.matrices
        nbytes = human_bytes(matrices * plan.problem.matrix_bytes)
        size = f"{matrices:,} of {rows:,} × {columns:,}, {plan.dtype}, {nbytes}"
        said = {key: value for key, value in plan.facts.config.items() if value}
        for key in ("results", "shard_bytes", *(() if plan.facts.synthetic else ("synthetic",))):
            said.pop(key, None)  # it is named above, is in `shards`, or was not used
        notes = (("of the input", note) for note in plan.facts.notes)
        pairs += [(key, plain(v)) for key, v in (("matrices", size), *said.items(), *notes)]
    return pairs


def _files(seen: Status) -> tuple[Rows, str]:
    """The result files with their paths, and the line of Python that reads the first."""
    if seen.summary is None:
        return [], ""
    paths = [seen.results.statistic(name) for name in seen.summary.files]
    files = filter(Path.exists, [*paths, seen.results.summary, seen.results.ledger])
    rows = [[link(path.name), plain(path), human_bytes(path.stat().st_size)] for path in files]
    return rows, f"np.load({str(paths[0])!r})"


def _failed(seen: Status) -> Rows:
    """Shards and stages without a result, the latest failure first."""
    return [
        [*map(plain, (name, why.reason, why.device or "", why.host, why.attempt)), link(why.log)]
        for name, why in seen.failed
    ]


def _bars(seen: Status) -> Rows:
    """By device, a bar of how it spent its time, and figures."""
    figures = defaultdict[str, Counter[str]](Counter)  # by device: its shards, bytes, phases
    for own in seen.done:
        figures[own.device.label].update({"shards": 1, "bytes": own.bytes, **own.held})
    rows, took = Rows(), busy(seen.done)
    for device, found in sorted(figures.items()):
        spent = {phase: found[phase] for phase in _PHASES}
        work = max(sum(spent.values()), 1e-9)
        whole = max(took, work)  # on a CPU several shards may be at work at once
        bar = Markup("").join(
            Markup('<i class="{}" style="width:{}%"></i>').format(phase, f"{100 * own / whole:.2f}")
            for phase, own in (spent | {"idle": whole - work}).items()
        )
        words = ", ".join(f"{_PHASES[phase]} {own / whole:.0%}" for phase, own in spent.items())
        drawn = Markup('<span class="bar" role="img" aria-label="{0}" title="{0}">{1}</span>')
        pace, shards = f"{human_bytes(found['bytes'] / work)}/s", f"{found['shards']:,.0f}"
        rows.append([plain(device), drawn.format(words, bar), f"{work / whole:.0%}", shards, pace])
    return rows


def _show_sum(seen: Status) -> tuple[str, str, Markup]:
    """The file of the sum, words on it, and its picture; or why there is none."""
    files = seen.summary.files if seen.summary else {}
    for name in [name for name in ("sum", "mean") if name in files]:
        try:
            return f"{name}.npy", *draw(read(seen.results.statistic(name)))
        except (OSError, ValueError) as error:
            return "", plain(f"The sum cannot be shown: {error}"), Markup("")
    return "", "There is no sum or mean of all products under this plan.", Markup("")


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
