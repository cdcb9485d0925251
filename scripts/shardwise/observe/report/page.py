"""The page: what was observed, put into its template."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from shardwise import __version__
from shardwise.errors import InputError
from shardwise.files.commit import commit
from shardwise.observe import verdict as verdicts
from shardwise.observe.advice import Advice, advise
from shardwise.observe.observation import Observation
from shardwise.observe.report import (
    answers,
    durations,
    heatmap,
    matrix,
    rates,
    tables,
    timeline,
    words,
    work,
)
from shardwise.observe.report.matrix import Matrix
from shardwise.observe.report.parts import Figure

_HERE = Path(__file__).parent


def write(seen: Observation, output: Path | None = None) -> Path:
    """Commit the page on what was observed; an older one is replaced.

    Parameters
    ----------
    output
        Where to, in place of ``report.html`` in the results folder.
    """
    page = render(seen, advise(seen), *picture(seen))
    path = output or seen.results.report
    with commit(path) as file:
        file.write(page.encode("utf-8", "replace"))
    return path


def picture(seen: Observation) -> tuple[Matrix | None, str]:
    """The sum as the page shows it, and why it does not where it does not.

    Only a sum that fits the plan and the products that lie there now is shown.
    """
    if not seen.summary_fits:
        return None, _no_sum(seen)
    files = seen.summary.files if seen.summary else {}
    named = next((name for name in ("sum", "mean") if name in files), None)
    if named is None:
        return None, "Neither sum nor mean is among the statistics, so there is no picture of it."
    try:
        return matrix.read(seen.results.statistic(named)), f"{named}.npy"
    except InputError as error:
        return None, words.plain(f"The sum cannot be shown: {error}")


def _no_sum(seen: Observation) -> str:
    """Why there is no sum of this plan and these products."""
    if seen.summary is None and seen.results.summary.exists():
        return "The receipt of the sum cannot be read, so no sum is shown."
    if seen.summary is None:
        return "Nothing is summed yet, so there is no sum to show."
    if seen.plan is None:
        return "A sum lies here, but no plan says what it is of, so it is not shown."
    return (
        "A sum lies here, but it is not of the plan and the products that lie here now, so it is "
        "not shown."
    )


def render(
    seen: Observation,
    advice: Sequence[Advice] = (),
    total: Matrix | None = None,
    total_words: str = "The sum was not read.",
) -> str:
    """The page as text; nothing is read.

    Parameters
    ----------
    advice
        What to change, what matters most first.
    total, total_words
        As :func:`picture` gives them.
    """
    run = work.of(seen)
    verdict = verdicts.verdict(seen)
    late = durations.stragglers(run)
    context = {
        "verdict": verdict,
        "first_line": [words.marked(part) for part in verdict.words.partition(". ")],
        "title": words.plain(f"Shardwise: {seen.results.root.resolve().name}"),
        "at": words.moment(seen.at),
        "version": __version__,
        "answers": answers.answers(seen, verdict, run, late, advice),
        "computed": tables.computed(seen, run),
        "sum_figures": _sum_figures(total, total_words),
        "sum_words": total_words,
        "scalars": tables.statistics(seen) if seen.summary_fits else [],
        "elements": heatmap.statistics(total) if total else [],
        "element_file": total_words if total else "",
        "timeline": timeline.figure(run),
        "rates": rates.figure(run),
        "durations": durations.figure(run),
        "failures": tables.failures(seen),
        "retries": tables.retries(seen),
        "quarantined": tables.quarantined(seen),
        "problems": [words.plain(problem) for problem in seen.problems[: tables.MOST_ROWS]],
        "more_problems": max(0, len(seen.problems) - tables.MOST_ROWS),
        "devices": tables.devices(seen, run),
        "versions": tables.versions(seen),
        "config": tables.config(seen),
        "advice": [(words.marked(one.words), words.marked(one.evidence)) for one in advice],
        "known": bool(seen.shards),
    }
    return _template().render(context)


def _sum_figures(total: Matrix | None, name: str) -> list[Figure]:
    return [heatmap.figure(total, name), heatmap.spectrum(total)] if total else []


def _template() -> jinja2.Template:
    """The template, its style and its script inside."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.update(
        style=Markup((_HERE / "page.css").read_text("utf-8")),
        script=Markup((_HERE / "page.js").read_text("utf-8")),
    )
    made: Any = environment.from_string((_HERE / "page.html.j2").read_text("utf-8"))
    return made
