"""What was computed, by whom and with what, as pairs of words and as tables."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from markupsafe import Markup

from shardwise.observe.observation import (
    DAMAGED,
    DONE,
    FAILED,
    RUNNING,
    STATES,
    Observation,
    Sighting,
)
from shardwise.observe.report import words
from shardwise.observe.report.durations import throttled
from shardwise.observe.report.parts import Cell, Table
from shardwise.observe.report.timeline import busy_share
from shardwise.observe.report.work import DeviceWork, Run
from shardwise.plan.plan import Plan
from shardwise.units import human_bytes, number

MOST_ROWS = 200
"""Failures, retries and settings that are listed."""

_SLOW = 0.8
"""Of the fastest rate of its kind, below which a device is called slow."""

Pair = tuple[str, Cell]


def computed(seen: Observation, run: Run) -> list[Pair]:
    """What the run was to do, and what it took."""
    made = list(_planned(seen.plan)) if seen.plan else []
    if seen.shards:
        made.append(("shards", _states(seen)))
    if used := sorted({own.backend for own in seen.shards.values() if own.backend}):
        made.append(("computed by", words.plain(" and ".join(used))))
    if run.begin is not None:
        end = max(stop for _, stop in run.stretches)
        words_of = f"{words.moment(run.begin)} to {words.moment(end)}"
        made.append(("shards at work", words_of))
        made.append(("that is", _how_long(run)))
    if (spent := reduce_seconds(seen)) is not None:
        made.append(("summing", words.seconds(spent)))
    joules, of = energy(seen)
    if joules is not None:
        part = "" if of == len(seen.shards) else f", of {words.count(of, 'shard')} that say it"
        made.append(("energy", f"{words.energy(joules)}{part}"))
    made.append(("results folder", words.plain(seen.results.root)))
    return made


def _planned(plan: Plan) -> Iterator[Pair]:
    problem, settings = plan.problem, plan.settings
    rows, columns = problem.left
    total = problem.matrices * problem.matrix_bytes
    yield (
        "matrices",
        (
            f"{problem.matrices:,} of {rows:,} × {columns:,}, {words.plain(plan.dtype)}, "
            f"{human_bytes(total)}"
        ),
    )
    yield "product", words.plain(problem.product)
    config = plan.facts.config
    source = words.inside(config, "input")
    yield "input", words.plain(source) if source else "the synthetic stack"
    kept = {"products": "every product", "sum": "the sum of each shard"}
    yield "kept", kept.get(settings.keep, words.plain(settings.keep))
    how = [f"backend {settings.backend}", f"precision {settings.precision}"]
    if not settings.verify:
        how.append("not proven: verify is false")
    if settings.nonfinite != "error":
        how.append(f"nonfinite {settings.nonfinite}")
    yield "how", words.plain(", ".join(map(str, how)))


def _states(seen: Observation) -> str:
    """How many shards there are of each state."""
    amounts = {state: 0 for state in STATES}
    for sighting in seen.shards.values():
        amounts[sighting.state] = amounts.get(sighting.state, 0) + 1
    if amounts[DONE] == len(seen.shards):
        return f"{len(seen.shards):,}, all done"
    told = ", ".join(f"{n:,} {state}" for state, n in amounts.items() if n)
    return f"{len(seen.shards):,}: {told}"


def _how_long(run: Run) -> str:
    nodes = {device.device.node for device in run.devices if device.device}
    where = f"{words.count(len(run.devices), 'device')} of {words.count(len(nodes), 'node')}"
    breaks = len(run.stretches) - 1
    pause = f", {words.count(breaks, 'break')} left out" if breaks else ""
    return f"{words.seconds(run.seconds)} on {where}{pause}"


def reduce_seconds(seen: Observation) -> float | None:
    """How long the reduce took, where its summary says so."""
    summary = seen.summary
    return max(0.0, summary.finished - summary.started) if summary else None


def energy(seen: Observation) -> tuple[float | None, int]:
    """Joules of the run, and the number of shards that they are of."""
    done = (own for own in seen.shards.values() if own.state == DONE)
    found = _all(done, "energy_joules")
    return (sum(found) if found else None), len(found)


def statistics(seen: Observation) -> list[Pair]:
    """The scalars of the summary, over all elements of all products."""
    scalars = seen.summary.scalars if seen.summary else {}
    made: list[Pair] = []
    for name, value in list(scalars.items())[:MOST_ROWS]:
        if isinstance(value, Mapping):  # where the extremes lie
            for which, place in list(value.items())[:4]:
                made.append((f"where the {words.plain(which)} lies", _place(place)))
        else:
            made.append((words.plain(name), words.figure(value)))
    return made


def _place(found: Any) -> str:
    if not isinstance(found, Mapping):
        return words.plain(found)
    return ", ".join(f"{words.plain(k)} {words.figure(v)}" for k, v in list(found.items())[:4])


# What failed.


def failures(seen: Observation) -> Table | None:
    """Shards and stages without a result, and why."""
    bad = [own for own in seen.shards.values() if own.state in (FAILED, DAMAGED)]
    rows: list[list[Cell]] = [
        [
            f"{words.plain(rule)} (stage)",
            words.plain(failure.reason),
            "failed",
            "",
            _log(failure.log),
        ]
        for rule, failure in seen.failures.items()
    ]
    rows += [
        [
            own.shard, _why(own), own.state, str(own.attempts),
            _log(own.failure.log if own.failure else None),
        ]
        for own in bad
    ]  # fmt: skip
    return _listed(["shard", "why", "state", "attempts", "log"], rows, frozenset({1, 2, 4}))


def _why(own: Sighting) -> str:
    if own.failure:
        return words.plain(own.failure.reason)
    return "what lies there cannot be used; see above" if own.state == DAMAGED else "not known"


def retries(seen: Observation) -> Table | None:
    """Shards that took more than one attempt."""
    again = [
        own for own in seen.shards.values() if own.attempts > 1 and own.state in (DONE, RUNNING)
    ]
    again.sort(key=lambda own: -own.attempts)
    rows: list[list[Cell]] = [
        [own.shard, str(own.attempts), own.state, words.device(own.device),
         _log(f"logs/multiply/{own.shard}.log")]
        for own in again
    ]  # fmt: skip
    return _listed(["shard", "attempts", "now", "device", "log"], rows, frozenset({2, 3, 4}))


def quarantined(seen: Observation) -> Table | None:
    """Devices that no task takes now, and CPUs that are noted."""
    rows: list[list[Cell]] = [
        [
            *map(words.plain, (entry.uuid, entry.host, entry.why, entry.shard)),
            words.moment(entry.time),
            "noted only" if entry.noted_only else words.moment(entry.expires),
        ]
        for entry in seen.quarantined
    ]  # fmt: skip
    heads = ["device", "node", "why", "shard", "since", "until"]
    return _listed(heads, rows, frozenset({1, 2, 3, 4, 5}))


def _log(path: str | None) -> Cell:
    if not path:
        return ""
    return Markup('<a href="{}">{}</a>').format(words.link(path), words.plain(path))


def _listed(heads: list[str], rows: list[list[Cell]], texts: frozenset[int]) -> Table | None:
    if not rows:
        return None
    more = len(rows) - MOST_ROWS
    note = f"… and {more:,} more; see ledger.tsv and logs/." if more > 0 else ""
    return Table(heads, rows[:MOST_ROWS], texts, note, filtered=True)


# Devices, versions, config.


def slow_devices(run: Run) -> list[tuple[DeviceWork, float]]:
    """Devices well below the fastest of their name, with the share of its rate that they reach."""
    found = [(device, part) for device, part in _of_fastest(run) if part < _SLOW]
    return sorted(found, key=lambda pair: pair[1])


def _of_fastest(run: Run) -> Iterator[tuple[DeviceWork, float]]:
    """The devices whose rate is known, with the share of that of the fastest of their name."""
    known = [own for own in run.devices if own.device and own.matrix_rate]
    best: dict[str, float] = {}
    for own in known:
        best[own.device.name] = max(best.get(own.device.name, 0.0), own.matrix_rate)
    for own in known:
        yield own, own.matrix_rate / best[own.device.name]


def devices(seen: Observation, run: Run) -> Table | None:
    """Who computed what, and how it fared."""
    if not run.devices:
        return None
    parts = {device.name: part for device, part in _of_fastest(run)}
    quarantined_now = {entry.uuid for entry in seen.quarantined}
    heads = ["device", "shards", "at work", "matrices/s", "of the fastest", "utilisation", "power",
             "hottest", "energy", "ECC errors", "remarks"]  # fmt: skip
    rows = []
    for device in run.devices:
        told = [bar.seen for bar in device.bars]
        remarks = []
        part = parts.get(device.name)
        if part is not None and part < _SLOW:
            remarks.append("slow")
        if device.device and device.device.uuid in quarantined_now:
            remarks.append("in quarantine")
        remarks += _throttled(device)
        rows.append([
            device.name, f"{len(device.bars):,}", words.share(busy_share(run, device)),
            words.speed(device.matrix_rate), words.share(part),
            *_telemetry(told), _ecc(told), ", ".join(remarks),
        ])  # fmt: skip
    return Table(heads, rows, frozenset({len(heads) - 1}), filtered=True)


def _telemetry(told: list[Sighting]) -> Iterator[str]:
    """Mean utilisation and power by seconds, the highest temperature, the energy."""
    utilisation = _mean(told, "utilisation")
    power = _mean(told, "power_watts")
    hottest = _all(told, "temperature_celsius", "max")
    joules = _all(told, "energy_joules")
    yield words.share(utilisation)
    yield words.DASH if power is None else f"{power:.0f} W"
    yield f"{max(hottest):.0f} °C" if hottest else words.DASH
    yield words.rate(sum(joules), "J") if joules else words.DASH


def _all(told: Iterable[Sighting], *keys: str) -> list[float]:
    """The numbers that telemetry has under some keys."""
    found = (number(words.inside(own.telemetry, *keys)) for own in told)
    return [value for value in found if value is not None]


def _mean(told: list[Sighting], key: str) -> float | None:
    """A mean over shards, each weighed by its seconds."""
    total = weight = 0.0
    for own in told:
        value = number(words.inside(own.telemetry, key, "mean"))
        spent = number(words.inside(own.telemetry, "seconds"))
        if value is not None and spent:
            total, weight = total + value * spent, weight + spent
    return total / weight if weight > 0 else None


def _throttled(device: DeviceWork) -> list[str]:
    """What slowed it down, and how long."""
    total: dict[str, float] = {}
    for bar in device.bars:
        for name, spent in throttled(bar).items():
            total[name] = total.get(name, 0.0) + spent
    return [f"slowed down {words.seconds(s)}: {n.replace('_', ' ')}" for n, s in total.items()]


def _ecc(told: list[Sighting]) -> str:
    """Corrected and uncorrected errors, where they are counted."""
    found = [_all(told, kind) for kind in ("ecc_corrected", "ecc_uncorrected")]
    if not any(found):
        return words.DASH
    corrected, uncorrected = (int(sum(amounts)) for amounts in found)
    if uncorrected:
        return f"{uncorrected:,} uncorrected, {corrected:,} corrected"
    return f"{corrected:,} corrected" if corrected else "0"


def versions(seen: Observation) -> Table | None:
    """The software of the products and of the sum."""
    rows: list[list[Cell]] = []
    if seen.summary is not None:
        for own in seen.summary.made_by["software"][:MOST_ROWS]:
            made = f"products of {words.figure(own['shards'])} shards"
            rows.append([made, *_software(own["commit"], own["versions"])])
        rows.append(["the sum", *_software(seen.summary.commit, seen.summary.versions)])
    if seen.plan is not None and seen.plan.facts.made is not None:
        made_plan = seen.plan.facts.made
        rows.append(["the plan", *_software(made_plan.commit, made_plan.versions)])
    return Table(["made", "commit", "versions"], rows, frozenset({1, 2})) if rows else None


def _software(commit: str | None, versions: Mapping[str, str]) -> tuple[str, str]:
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    return words.plain(commit or words.DASH), words.plain(listed)


def config(seen: Observation) -> Table | None:
    """The config of the plan, key by key."""
    found = seen.plan.facts.config if seen.plan else None
    if not isinstance(found, Mapping):
        return None
    rows = [[words.plain(key), _value(value)] for key, value in list(found.items())[:MOST_ROWS]]
    return Table(["key", "value"], rows, frozenset({1}))


def _value(value: Any) -> str:
    """A value as YAML has it, near enough to be copied."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, Mapping):
        return words.plain("{" + ", ".join(f"{k}: {_value(v)}" for k, v in value.items()) + "}")
    if isinstance(value, list):
        return words.plain("[" + ", ".join(map(_value, value)) + "]")
    return words.plain(value)


def amount(seen: Observation, *states: str) -> int:
    """How many shards are in one of some states."""
    return sum(own.state in states for own in seen.shards.values())
