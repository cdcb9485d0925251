"""The page: what a results folder shows, put into its template."""

from collections import Counter, defaultdict
from pathlib import Path
from urllib.parse import quote

import jinja2
import numpy as np
from markupsafe import Markup

from shardwise import __version__
from shardwise.files.commit import commit
from shardwise.observe.report import picture
from shardwise.observe.status import Status, busy
from shardwise.units import DASH, clock, decimal, human_bytes, plain, seconds, share

_HERE = Path(__file__).parent
_PHASES = {"read": "reading the input", "compute": "computing", "write": "writing the result"}

Cell = str | Markup
Rows = list[list[Cell]]
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
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    (total, why), (results, load) = _total(seen), _files(seen)
    return environment.from_string((_HERE / "page.html.j2").read_text("utf-8")).render(
        seen=seen, total=total, why=why, picture=picture,
        first_line=seen.verdict.words.partition(". "),
        title=plain(f"Shardwise: {seen.results.root.resolve().name}"),
        at=clock(seen.at), version=__version__, verify="shardwise verify",
        files=results, load=load, facts=_facts(seen),
        took=seconds(busy(seen.done)), phases=_PHASES, bars=_bars(seen),
        failed=_failed(seen), remarks=[*map(plain, seen.remarks)],
        style=Markup((_HERE / "page.css").read_text("utf-8")),
    )  # fmt: skip


def _total(seen: Status) -> tuple[np.ndarray | None, str]:
    """Elements of the sum and its file name, or None and why they are not shown."""
    files = seen.summary.files if seen.summary else {}
    for name in [name for name in ("sum", "mean") if name in files]:
        try:
            return picture.read(seen.results.statistic(name)), f"{name}.npy"
        except (OSError, ValueError) as error:
            return None, plain(f"The sum cannot be shown: {error}")
    return None, "There is no sum or mean of all products under this plan."


def link(path: str | None) -> Cell:
    """A path below the results folder as a relative link, never as any other address."""
    if not path:
        return ""
    address = "./" + quote(path.encode("utf-8", "surrogateescape"), safe="/")
    return Markup('<a href="{}">{}</a>').format(address, plain(path))


def _facts(seen: Status) -> list[tuple[str, str]]:
    """What the run computes, and how."""
    pairs = [("results folder", plain(seen.results.root))]
    if plan := seen.plan:
        (rows, columns), count = plan.problem.left, plan.problem.matrices
        size = f"{rows:,} × {columns:,}, {plan.dtype}"
        nbytes = human_bytes(count * plan.problem.matrix_bytes)
        pairs.append(("matrices", plain(f"{count:,} of {size}, {nbytes}")))
        said = {key: value for key, value in plan.facts.config.items() if value}
        for key in ("results", "shard_bytes", *(() if plan.facts.synthetic else ("synthetic",))):
            said.pop(key, None)  # it is named above, is in `shards`, or was not used
        pairs += [(key, plain(value)) for key, value in said.items()]
        pairs += [("of the input", plain(note)) for note in plan.facts.notes]
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
        work = sum(spent.values())
        whole = max(took, work, 1e-9)  # on a CPU several shards may be at work at once
        words = ", ".join(f"{_PHASES[phase]} {share(spent[phase] / whole)}" for phase in spent)
        bar = Markup("").join(
            Markup('<i class="{}" style="width:{}%"></i>').format(phase, f"{100 * own / whole:.2f}")
            for phase, own in (spent | {"idle": whole - work}).items()
        )
        drawn = Markup('<span class="bar" role="img" aria-label="{0}" title="{0}">{1}</span>')
        pace = decimal(found["bytes"] / work, "B/s") if work > 0 else DASH
        shards = f"{found['shards']:,.0f}"
        rows.append([plain(device), drawn.format(words, bar), share(work / whole), shards, pace])
    return rows
