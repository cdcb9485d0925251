"""What the page says in words and tables: the run, its files, its failures, its devices."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from urllib.parse import quote

from markupsafe import Markup

from shardwise.observe.observation import DAMAGED, FAILED, Observation
from shardwise.observe.run_table import RunTable, joined
from shardwise.plan.plan import Plan
from shardwise.records.timeline import PHASES, Span, length, union
from shardwise.units import DASH, count, figure, human_bytes, plain, seconds, share

MOST_ROWS = 1000
"""The most rows of a table."""

Cell = str | Markup
Pair = tuple[str, Cell]
Rows = list[Sequence[Cell]]


@dataclass(frozen=True)
class Table:
    """Cells in rows, of which the first names the row; the template escapes and draws them.

    ``texts`` numbers the columns that hold words, except the first; ``note`` says what is left out.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    texts: frozenset[int] = frozenset()
    note: str = ""


def _table(
    heads: Sequence[str], rows: Rows, texts: Sequence[int] = (), every: int = 0
) -> Table | None:
    """A table of the first rows; None if there are none. ``every``: how many there are in all."""
    more = max(every, len(rows)) - MOST_ROWS
    note = f"… and {more:,} more; ledger.tsv and logs/ have all." if more > 0 else ""
    return Table(heads, rows[:MOST_ROWS], frozenset(texts), note) if rows else None


# The run.


def facts(seen: Observation, run: RunTable) -> list[Pair]:
    """What the run computes, and how."""
    pairs = list(_planned(seen.plan)) if seen.plan else []
    if seen.shards:
        words = ", ".join(f"{n:,} {state}" for state, n in seen.counts.items() if n)
        every = len(seen.done) == len(seen.shards)
        pairs.append(("shards", f"{len(seen.shards):,}, {'all done' if every else words}"))
        logs = seen.results.running.parent
        names = [name for name in ("array", "pool", "mpi") if (logs / name).is_dir()]
        pairs.append(("dispatch", " and ".join(names) or "jobs: one job per shard"))
    if len(run.devices):
        kinds = Counter(map(plain, run.devices.kind))
        where = count(len(set(run.devices.node)), "node")
        words = ", ".join(f"{n:,} × {kind}" for kind, n in kinds.items())
        pairs.append(("devices", f"{words}, on {where}"))
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
    yield "product of each", plain(problem.product)
    yield "input", plain(plan.facts.config.get("input") or "a generated stack (synthetic)")
    for note in plan.facts.notes:
        yield "of the input", plain(note)
    kept = {"products": "every product", "sum": "the sum of each shard"}
    yield "kept", kept.get(settings.keep, plain(settings.keep))
    how = f"backend {settings.backend}, precision {settings.precision}"
    yield "computed with", plain(how + ("" if settings.verify else ", not proven: verify is false"))


def spent(seen: Observation, run: RunTable, copies: Sequence[Span]) -> list[tuple[str, str, float]]:
    """Where the total time of the run went: the class of its colour, a name, and seconds.

    Each moment from the plan to the last result counts once, for the first of these that was at
    work then: shards, reduce, copies. The rest is waiting. Breaks between runs do not count.
    """
    spans, planned = list(run.stretches), seen.plan.facts.made if seen.plan else None
    if planned is None or not spans or planned.time > spans[0][0]:
        return []
    reduce = [(own.started, own.finished)] if (own := seen.summary) else []
    reduce = [span for span in reduce if spans[-1][0] < span[0] <= span[1]]
    last = max(end for _, end in [*spans, *reduce])
    breaks = sum(b - a for (_, a), (b, _) in pairwise(spans))
    known, before, rows = list[Span](), 0.0, []
    parts = (("p3", "computing shards", joined(run.shards)), ("p1", "reduce", reduce),
             ("p5", "copying shards", copies))  # fmt: skip
    for kind, name, own in parts:
        known = union([*known, *((max(a, planned.time), min(b, last)) for a, b in own)])
        rows.append((kind, name, length(known) - before))
        before = length(known)
    rest = max(0.0, last - planned.time - breaks - before)
    rows.append(("p0", "queue and start", rest))
    return [row for row in (rows[3], rows[2], *rows[:2]) if row[2] > 0]


def files(seen: Observation) -> tuple[Table | None, str]:
    """The result files with their paths, and the line of Python that reads the first."""
    results = seen.results
    named = seen.summary.files if seen.summary and seen.summary_fits else {}
    paths = [results.statistic(name) for name in named]
    rows: Rows = []
    for path in [*paths, results.summary, results.ledger]:
        if path.exists():
            rows.append([link(path.name), plain(path), human_bytes(path.stat().st_size)])
    line = f'np.load("{plain(paths[0])}")' if paths and paths[0].exists() else ""
    return _table(["file", "path", "size"], rows, [1]), line


def link(path: str | None) -> Cell:
    """A path below the results folder as a relative link, never as any other address."""
    if not path:
        return ""
    address = "./" + quote(path.encode("utf-8", "surrogateescape"), safe="/")
    return Markup('<a href="{}">{}</a>').format(address, plain(path))


def statistics(seen: Observation) -> list[Pair]:
    """The scalars of the summary, over all elements of all products."""
    pairs: list[Pair] = []
    for name, value in seen.summary.scalars.items() if seen.summary and seen.summary_fits else ():
        if isinstance(value, Mapping):  # where the extremes lie
            for which, place in list(value.items())[:4]:
                items = place.items() if isinstance(place, Mapping) else [("", place)]
                words = ", ".join(f"{plain(k)} {figure(v)}" for k, v in list(items)[:4])
                pairs.append((f"where the {plain(which)} lies", words.strip()))
        else:
            pairs.append((plain(name), figure(value)))
    return pairs


# The shards.


def shards(run: RunTable) -> Table | None:
    """The shards with their times, the longest first."""
    heads = ["shard", "device", "state", "began after", "took", *PHASES, "attempts"]
    slowest = run.shards.sort_values(["seconds", "shard"], ascending=[False, True])
    rows: Rows = [
        [plain(row.shard), row.label, row.state, seconds(row.begin - run.begin),
         seconds(row.seconds), *(seconds(getattr(row, f"held_{phase}")) for phase in PHASES),
         f"{row.attempts:.0f}"]
        for row in slowest[:MOST_ROWS].itertuples()
    ]  # fmt: skip
    return _table(heads, rows, [1, 2], len(slowest))


# What failed.


def failed(seen: Observation) -> list[tuple[str, Table]]:
    """Everything that went wrong, as tables with titles."""
    remarks = [*seen.problems, *(f"in quarantine: {entry}" for entry in seen.quarantined)]
    numbered: Rows = [[f"{n}", plain(text)] for n, text in enumerate(remarks, 1)]
    found = _table(["", "what was found in the results folder"], numbered, [1])
    parts = [("Without a result", failures(seen)), ("Remarks", found)]
    return [(name, table) for name, table in parts if table]


def failures(seen: Observation) -> Table | None:
    """Shards and stages without a result, and why."""
    rows: Rows = [
        [f"{plain(rule)} (stage)", plain(why.reason), "failed", "", link(why.log)]
        for rule, why in seen.failures.items()
    ]
    for own in seen.shards.values():
        if own.state in (FAILED, DAMAGED):
            why = own.failure
            words = "its files cannot be used" if own.state == DAMAGED else "not known"
            reason, log = (plain(why.reason), link(why.log)) if why else (words, "")
            rows.append([plain(own.shard), reason, own.state, str(own.attempts), log])
    return _table(["shard", "why", "state", "attempts", "log"], rows, [1, 2, 4])


# Devices.


def devices(seen: Observation, run: RunTable) -> Table | None:
    """What each device computed, and how fast."""
    barred = {own.uuid for own in seen.quarantined}
    rows: Rows = []
    for device in run.devices.itertuples():
        remarks = ["slow"] * (device.Index in run.slow)
        remarks += ["in quarantine"] * (device.uuid in barred)
        pace = f"{1 / device.pace:,.3g}" if device.pace > 0 else DASH
        busy = share(min(1.0, device.busy / max(run.seconds, 1e-9)))
        rows.append([device.label, f"{device.shards:,}", busy, pace, ", ".join(remarks)])
    return _table(["device", "shards", "at work", "matrices/s", "remarks"], rows, [4])
