"""What the page says in words and tables: the run, its files, its failures, its devices."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from shardwise.files.paths import place
from shardwise.observe.observation import DAMAGED, DONE, FAILED, RUNNING, Observation, Sighting
from shardwise.observe.report.matrix import Matrix
from shardwise.observe.report.plots import PHASE_NAMES
from shardwise.observe.run_table import RunTable, throttled
from shardwise.plan.plan import Plan
from shardwise.records.timeline import PHASES, STAGES, Span, length, union
from shardwise.units import (
    DASH,
    any_clock,
    count,
    figure,
    human_bytes,
    inside,
    plain,
    rate,
    seconds,
    share,
)

MOST_ROWS = 200
"""Failures, retries and settings that are listed."""

MOST_SHARDS = 1000
"""Shards of the table, the longest first; the ledger has all."""

_MOST_LATE = 20

Cell = str | Markup
Pair = tuple[str, Cell]
Rows = list[Sequence[Cell]]


@dataclass(frozen=True)
class Table:
    """Cells in rows, of which the first names the row; the template escapes and draws them.

    ``texts`` numbers the columns that hold words, beside the first; ``note`` says what is left out.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    texts: frozenset[int] = frozenset()
    note: str = ""


def _table(
    heads: Sequence[str], rows: Rows, texts: Sequence[int] = (),
    most: int = MOST_ROWS,
) -> Table | None:  # fmt: skip
    """A table of the first rows; None where there are none."""
    more = len(rows) - most
    note = f"… and {more:,} more; ledger.tsv and logs/ have all." if more > 0 else ""
    return Table(heads, rows[:most], frozenset(texts), note) if rows else None


# The run.


def facts(seen: Observation, run: RunTable, dispatch: str) -> list[Pair]:
    """What the run was to do, and how."""
    pairs = list(_planned(seen.plan)) if seen.plan else []
    if seen.shards:
        words = ", ".join(f"{n:,} {state}" for state, n in seen.counts.items() if n)
        every = len(seen.done) == len(seen.shards)
        pairs.append(("shards", f"{len(seen.shards):,}, {'all done' if every else words}"))
    if dispatch:
        pairs.append(("dispatch", dispatch))
    if len(run.devices):
        kinds = Counter(map(plain, run.devices.kind))
        where = count(len(set(run.devices.node)), "node")
        words = ", ".join(f"{n:,} × {kind}" for kind, n in kinds.items())
        pairs.append(("devices", f"{words}, on {where}"))
    if seen.summary is not None:
        words = ", ".join(map(plain, seen.summary.files))
        pairs.append(("reduce", f"{words}; ranks: {seen.summary.ranks}"))
    if joules := _values(seen.done, "energy_joules"):
        part = "" if len(joules) == len(seen.done) else f", of {count(len(joules), 'shard')}"
        pairs.append(("energy", f"{rate(sum(joules) / 3600, 'Wh')}{part}"))
    pairs.append(("results folder", plain(seen.results.root)))
    return pairs


def _planned(plan: Plan) -> Iterator[Pair]:
    problem, settings = plan.problem, plan.settings
    rows, columns = problem.left
    nbytes = human_bytes(problem.matrices * problem.matrix_bytes)
    size = f"{rows:,} × {columns:,}, {plain(plan.dtype)}, {nbytes}"
    yield "matrices", f"{problem.matrices:,} of {size}"
    yield "product of each", plain(problem.product)
    source = inside(plan.facts.config, "input")
    yield "input", plain(source) if source else "a generated stack (synthetic)"
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
    begin = planned.time
    at_work = union(zip(run.shards.begin.tolist(), run.shards.end.tolist(), strict=True))
    reduce = [(own.started, own.finished)] if (own := seen.summary) else []
    reduce = [span for span in reduce if spans[-1][0] < span[0] <= span[1]]
    last = max(end for _, end in [*spans, *reduce])
    breaks = sum(b - a for (_, a), (b, _) in pairwise(spans))
    known, before, made = [], 0.0, []
    for kind, name, own in (("p3", "computing shards", at_work), ("p1", "reduce", reduce),
                            ("p5", "copying shards", copies)):  # fmt: skip
        known = union([*known, *((max(a, begin), b) for a, b in own if b > begin)])
        made.append((kind, name, length(known) - before))
        before = length(known)
    computing, reducing, copying = made
    waiting = ("p0", "queue and start", max(0.0, last - begin - breaks - before))
    return [row for row in (waiting, copying, computing, reducing) if row[2] > 0]


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
    """A path below the results folder as a relative link: never an address of another kind."""
    if not path:
        return ""
    address = "./" + quote(path.encode("utf-8", "surrogateescape"), safe="/")
    return Markup('<a href="{}">{}</a>').format(address, plain(path))


def elements(matrix: Matrix) -> list[Pair]:
    """The figures of the sum's elements."""
    what = " absolute value" if matrix.complex else ""
    rows = f", of every {matrix.step}th row" if matrix.step > 1 else ""
    return [
        (f"least{what}{rows}", DASH if matrix.low is None else f"{matrix.low:.8g}"),
        (f"greatest{what}{rows}", DASH if matrix.high is None else f"{matrix.high:.8g}"),
        (f"NaN or infinite elements{rows}", f"{matrix.nonfinite:,}"),
    ]


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


def late(run: RunTable) -> Table | None:
    """The stragglers, each with what took longer than in a typical shard."""
    usual = {phase: float(run.timed[f"held_{phase}"].median()) for phase in PHASES}
    rows: Rows = []
    for row in run.late.itertuples():
        held = {phase: getattr(row, f"held_{phase}") for phase in PHASES}
        reasons = [f"attempt {row.attempts:.0f}"] if row.attempts > 1 else []
        if held["read"] >= 0:
            phase = max(PHASES, key=lambda name: held[name] - usual[name])
            name, took = PHASE_NAMES[PHASES.index(phase)], seconds(held[phase])
            reasons.insert(0, f"{name} took {took} instead of {seconds(usual[phase])}")
        reasons += _throttled([run.seen.shards[row.shard]])
        times = f"{row.seconds / run.typical:.2g} × the median"
        rows.append([plain(row.shard), row.label, seconds(row.seconds), times, "; ".join(reasons)])
    return _table(["shard", "device", "took", "that is", "why"], rows, [1, 4], _MOST_LATE)


def _throttled(own: Sequence[Sighting]) -> list[str]:
    return [f"slowed down by {name} for {seconds(lost)}" for name, lost in throttled(own).items()]


def shards(run: RunTable) -> Table | None:
    """The shards with their times, the longest first."""
    heads = ["shard", "device", "state", "began after", "took", *PHASES, "attempts"]
    slowest = run.shards.sort_values(["seconds", "shard"], ascending=[False, True])
    rows: Rows = [
        [plain(row.shard), row.label, row.state, seconds(row.begin - run.begin),
         seconds(row.seconds), *(seconds(getattr(row, f"held_{phase}")) for phase in PHASES),
         f"{row.attempts:.0f}"]
        for row in slowest[:MOST_SHARDS].itertuples()
    ]  # fmt: skip
    note = f"The {MOST_SHARDS:,} longest of {len(slowest):,} shards; ledger.tsv has all."
    return (
        Table(heads, rows, frozenset([1, 2]), note * (len(slowest) > len(rows))) if rows else None
    )


def rates(run: RunTable) -> Table | None:
    """How fast each stage was on each node, while it was at work."""
    rows: Rows = []
    for node, own in run.timed.groupby("node"):
        cells = [plain(node)]
        for stage in STAGES:
            unit = "FLOP/s" if stage == "compute" else "B/s"
            busy = float(own[f"busy_{stage}"].sum()) / max(float(own.seconds.sum()), 1e-9)
            cells.append(f"{rate(run.rate(stage, node), unit)}, {share(min(1.0, busy))}")
        rows.append(cells)
    return _table(["node", *STAGES], rows)


# What failed.


def failed(seen: Observation) -> list[tuple[str, Table]]:
    """All that went wrong, each table with its title."""
    problems: Rows = [[f"{n}", plain(text)] for n, text in enumerate(seen.problems, 1)]
    parts = [
        ("Without a result", failures(seen)),
        ("Remarks", _table(["", "what was found in the results folder"], problems, [1])),
        ("Devices in quarantine", quarantined(seen)),
        ("More than one attempt", retries(seen)),
    ]
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


def retries(seen: Observation) -> Table | None:
    """Shards that took more than one attempt."""
    again = [own for own in seen.shards.values() if own.attempts > 1
             and own.state in (DONE, RUNNING)]  # fmt: skip
    rows: Rows = [
        [plain(own.shard), str(own.attempts), own.state, plain(own.device.label) if own.device
         else DASH, link(f"logs/multiply/{place(own.shard)}.log")]
        for own in sorted(again, key=lambda own: -own.attempts)
    ]  # fmt: skip
    return _table(["shard", "attempts", "now", "device", "log"], rows, [2, 3, 4])


def quarantined(seen: Observation) -> Table | None:
    """Devices that no task takes now."""
    rows: Rows = [
        [*map(plain, (own.uuid, own.host, own.why, own.shard)), any_clock(own.time),
         any_clock(own.expires)]
        for own in seen.quarantined
    ]  # fmt: skip
    return _table(["device", "node", "why", "shard", "since", "until"], rows, [1, 2, 3, 4, 5])


# Devices, versions, config.


def devices(seen: Observation, run: RunTable) -> Table | None:
    """Who computed what, and how it fared."""
    barred, slow = {own.uuid for own in seen.quarantined}, set(run.slow.index)
    rows: Rows = []
    for device in run.devices.itertuples():
        own = [seen.shards[shard] for shard in run.shards.shard[run.shards.key == device.Index]]
        remarks = ["slow"] * (device.Index in slow) + ["in quarantine"] * (device.uuid in barred)
        remarks += _throttled(own)
        ecc = sum(_values(own, "ecc_uncorrected"))
        remarks += [f"{count(int(ecc), 'uncorrected memory error')}"] if ecc else []
        pace = f"{1 / device.pace:,.3g}" if device.pace > 0 else DASH
        rows.append([device.label, f"{device.shards:,}",
                     share(min(1.0, device.busy / max(run.seconds, 1e-9))), pace,
                     *_telemetry(own), ", ".join(remarks)])  # fmt: skip
    heads = ["device", "shards", "at work", "matrices/s", "utilisation", "power", "hottest",
             "remarks"]  # fmt: skip
    return _table(heads, rows, [7])


def _telemetry(own: Sequence[Sighting]) -> Iterator[str]:
    """Mean utilisation and power, and the highest temperature."""
    power, hottest = _mean(own, "power_watts"), _values(own, "temperature_celsius")
    yield share(_mean(own, "utilisation"))
    yield DASH if power is None else f"{power:.0f} W"
    yield f"{max(pair['max'] for pair in hottest):.0f} °C" if hottest else DASH


def _values(own: Sequence[Sighting], key: str) -> list[Any]:
    """What the telemetry of some shards has under a key, where it has that."""
    values = (each.telemetry[key] for each in own if each.telemetry)  # type: ignore[literal-required]
    return [value for value in values if value is not None]


def _mean(own: Sequence[Sighting], key: str) -> float | None:
    """A mean over shards, each weighed by its seconds."""
    pairs = [(each.telemetry[key]["mean"], each.telemetry["seconds"]) for each in own  # type: ignore[literal-required]
             if each.telemetry and each.telemetry[key]]  # type: ignore[literal-required] # fmt: skip
    weight = sum(lasted for _, lasted in pairs)
    return sum(value * lasted for value, lasted in pairs) / weight if weight > 0 else None


def versions(seen: Observation) -> Table | None:
    """The software of the products and of the sum."""
    rows: Rows = []
    if seen.summary is not None:
        for own in seen.summary.made_by["software"]:
            made = f"products of {figure(own['shards'])} shards"
            rows.append([made, *_software(own["commit"], own["versions"])])
        rows.append(["the sum", *_software(seen.summary.commit, seen.summary.versions)])
    if seen.plan is not None and (planned := seen.plan.facts.made):
        rows.append(["the plan", *_software(planned.commit, planned.versions)])
    return _table(["made", "commit", "versions"], rows, [1, 2])


def _software(commit: str | None, versions: Mapping[str, str]) -> tuple[str, str]:
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    return plain(commit or DASH), plain(listed)


def config(seen: Observation) -> Table | None:
    """The config of the plan, key by key."""
    items = (seen.plan.facts.config if seen.plan else {}) or {}
    rows: Rows = [[plain(key), plain(_value(own))] for key, own in items.items()]
    return _table(["key", "value"], rows, [1])


def _value(value: Any) -> str:
    """A value as YAML has it, near enough to be copied."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_value(own)}" for key, own in value.items()) + "}"
    return "[" + ", ".join(map(_value, value)) + "]" if isinstance(value, list) else str(value)
