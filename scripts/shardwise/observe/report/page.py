"""The page: what a results folder shows, put into its template."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from shardwise import __version__, host
from shardwise.errors import InputError, one_line
from shardwise.files.commit import commit
from shardwise.observe.folder import read_command
from shardwise.observe.report import picture, times
from shardwise.observe.report.times import DeviceTime
from shardwise.observe.status import Status
from shardwise.plan.plan import Plan
from shardwise.units import DASH, any_clock, count, human_bytes, plain, seconds, share

_HERE = Path(__file__).parent
_MOST_ROWS = 1000

Cell = str | Markup
Pair = tuple[str, Cell]


@dataclass(frozen=True)
class Table:
    """Cells in rows, of which the first names the row; the template escapes and draws them.

    ``texts`` numbers the columns that hold words, except the first; ``note`` says what is left out.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    texts: Sequence[int] = ()
    note: str = ""


def _table(
    heads: Sequence[str], rows: Sequence[Sequence[Cell]], texts: Sequence[int] = ()
) -> Table | None:
    """A table of the first rows; None if there are none."""
    more = len(rows) - _MOST_ROWS
    note = f"… and {more:,} more; ledger.tsv and failed/ have all." if more > 0 else ""
    return Table(heads, rows[:_MOST_ROWS], texts, note) if rows else None


def write(seen: Status, output: Path | None = None) -> Path:
    """Commit the page, by default to ``report.html`` in the results folder."""
    page = render(seen)
    path = output or seen.results.report
    with commit(path) as file:
        file.write(page.encode("utf-8", "replace"))
    return path


def render(seen: Status) -> str:
    """The page as text; of the results, it reads only the sum."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    (devices, took), (total, why) = times.look(seen), _total(seen)
    results, load = _files(seen)
    remarks = [[f"{n}", plain(text)] for n, text in enumerate(seen.problems, 1)]
    return environment.from_string((_HERE / "page.html.j2").read_text("utf-8")).render(
        seen=seen, total=total, why=why, draw=picture.draw,
        first_line=[marked(part) for part in seen.verdict.words.partition(". ")],
        title=plain(f"Shardwise: {seen.results.root.resolve().name}"),
        at=any_clock(seen.at), version=__version__, verify=host.command("verify"),
        command=read_command(seen.results), files=results, load=load, facts=_facts(seen, devices),
        bad=seen.verdict.kind in ("failed", "damaged"),
        took=took, bars=_bars(devices, took),
        failed=_failed(seen), remarks=_table(["", "what was found in the folder"], remarks, [1]),
        seconds=seconds, style=Markup((_HERE / "page.css").read_text("utf-8")),
    )  # fmt: skip


def _total(seen: Status) -> tuple[picture.Matrix | None, str]:
    """The sum with its name, or why it is not shown."""
    if seen.summary is None:
        return None, "Nothing is summed yet under this plan."
    named = next((name for name in ("sum", "mean") if name in seen.summary.files), None)
    if named is None:
        return None, "There is no sum or mean of all products, so there is no picture."
    try:
        return picture.read(seen.results.statistic(named)), f"{named}.npy"
    except InputError as error:
        return None, plain(f"The sum cannot be shown: {error}")


def marked(text: object) -> Markup:
    """A sentence as HTML, with the parts between backticks as code."""
    return Markup("").join(
        Markup("<code>{}</code>" if i % 2 else "{}").format(piece)
        for i, piece in enumerate(one_line(str(text)).split("`"))
    )


def link(path: str | None) -> Cell:
    """A path below the results folder as a relative link, never as any other address."""
    if not path:
        return ""
    address = "./" + quote(path.encode("utf-8", "surrogateescape"), safe="/")
    return Markup('<a href="{}">{}</a>').format(address, plain(path))


def _facts(seen: Status, devices: Sequence[DeviceTime]) -> list[Pair]:
    """What the run computes, and how."""
    pairs = list(_planned(seen.plan)) if seen.plan else []
    if seen.shards:
        words = ", ".join(f"{n:,} {state}" for state, n in seen.counts.items() if n)
        every = len(seen.done) == len(seen.shards)
        pairs.append(("shards", f"{len(seen.shards):,}, {'all done' if every else words}"))
    if devices:
        pairs.append(("devices", count(len(devices), "device")))
    if seen.summary is not None:
        words = ", ".join(map(plain, seen.summary.files))
        pairs.append(("reduce", f"{words}; ranks: {seen.summary.ranks}"))
    pairs.append(("results folder", plain(seen.results.root)))
    return pairs


def _planned(plan: Plan) -> Iterator[Pair]:
    problem, settings = plan.problem, plan.settings
    rows, columns = problem.left
    nbytes = human_bytes(problem.matrices * problem.matrix_bytes)
    size = f"{rows:,} × {columns:,}, {plain(plan.dtype)}, {nbytes}"
    yield "matrices", f"{problem.matrices:,} of {size}"
    less = "" if plan.offset is None else ", A less the offset in offset.npy"
    yield "product of each", plain(problem.product + less)
    yield "input", plain(plan.facts.config.get("input") or "a generated stack (synthetic)")
    for note in plan.facts.notes:
        yield "of the input", plain(note)
    kept = {"products": "every product", "sum": "the sum of each shard"}
    yield "kept", kept.get(settings.keep, plain(settings.keep))
    how = f"backend {settings.backend}, precision {settings.precision}"
    yield "computed with", plain(how + ("" if settings.verify else ", not proven: verify is false"))


def _files(seen: Status) -> tuple[Table | None, str]:
    """The result files with their paths, and the line of Python that reads the first."""
    results = seen.results
    paths = [results.statistic(name) for name in (seen.summary.files if seen.summary else {})]
    rows = [
        [link(path.name), plain(path), human_bytes(path.stat().st_size)]
        for path in [*paths, results.summary, results.ledger]
        if seen.summary and path.exists()
    ]
    line = f'np.load("{plain(paths[0])}")' if paths and paths[0].exists() else ""
    return _table(["file", "path", "size"], rows, [1]), line


def _failed(seen: Status) -> Table | None:
    """Shards and stages without a result: why, where, and the log that has more."""
    rows: list[list[Cell]] = []
    for name, why in seen.failed:
        stage = "" if name in seen.shards else " (stage)"
        where = f"{why.device} of {why.host}" if why.device else why.host
        row = [plain(name) + stage, plain(why.reason), plain(where), f"{why.attempt}"]
        rows.append([*row, link(why.log)])
    causes = Counter(why.reason for _, why in seen.failed)
    rows.sort(key=lambda row: -causes[str(row[1])])  # the most frequent cause first
    return _table(["shard", "why", "where", "attempts", "log"], rows, [1, 2, 4])


def _bars(devices: Sequence[DeviceTime], took: float) -> Table | None:
    """What each device did: a bar of what its time went into, and figures."""
    rows: list[list[Cell]] = []
    for device in devices:
        parts = device.parts(took)
        words = ", ".join(f"{name} {share(part)}" for _, name, part in parts)
        bar = Markup("").join(
            Markup('<i class="{}" style="width:{}%"></i>').format(kind, f"{100 * part:.2f}")
            for kind, _, part in parts
        )
        drawn = Markup('<span class="bar" role="img" aria-label="{0}" title="{0}">{1}</span>')
        pace = f"{device.matrices / device.busy:,.3g}" if device.busy > 0 else DASH
        at_work = share(min(1.0, device.busy / max(took, 1e-9)))
        rows.append([device.label, drawn.format(words, bar), at_work, f"{device.shards:,}", pace])
    return _table(["device", "its time", "at work", "shards", "matrices/s"], rows, [1])
