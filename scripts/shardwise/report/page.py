"""The page: what was observed, put into its template."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from shardwise import __version__, advice, ceilings, observe
from shardwise.arrays import commit
from shardwise.errors import InputError
from shardwise.observe import Observation, Observer
from shardwise.report import durations, facts, glance, heatmap, matrix, rates, timeline, words, work
from shardwise.report.glance import Advice
from shardwise.report.matrix import Matrix
from shardwise.report.parts import Figure
from shardwise.report.rates import Ceiling

_HERE = Path(__file__).parent


def write(root: Path, output: Path | None = None) -> Path:
    """Look at a results folder and commit its page; an older one is replaced.

    Parameters
    ----------
    output
        Where to, in place of ``report.html`` in the folder.

    Raises
    ------
    InputError
        Where there is no such folder.
    """
    if not root.is_dir():
        raise InputError(f"{root}: there is no such folder; name the results folder of a run")
    return write_seen(Observer(root).look(), output)


def write_seen(seen: Observation, output: Path | None = None) -> Path:
    """Commit the page on what was observed already; ``output`` as for :func:`write`."""
    page = render(seen, *_derived(seen), *picture(seen))
    path = output or seen.results.report
    with commit(path) as file:
        file.write(page.encode("utf-8", "replace"))
    return path


def _derived(seen: Observation) -> tuple[Sequence[Advice], Mapping[str, Ceiling]]:
    """The advice, and the ceilings that it goes by."""
    measured = ceilings.read(seen.results)
    return advice.advise(seen, measured), measured


def picture(seen: Observation) -> tuple[Matrix | None, str]:
    """The sum as the page shows it, and why it does not where it does not.

    Only a sum that fits the plan and the products that lie there now is shown.
    """
    if seen.summary is None:
        return None, "Nothing is summed yet, so there is no sum to show."
    if not seen.summary_fits:
        return None, (
            "A sum lies here, but it is not of the plan and the products that lie here now, so it "
            "is not shown."
        )
    files = words.inside(seen.summary, "files")
    named = next((name for name in ("sum", "mean") if words.inside(files, name)), None)
    if named is None:
        return None, "Neither sum nor mean is among the statistics, so there is no picture of it."
    try:
        return matrix.read(seen.results.statistic(named)), f"{named}.npy"
    except InputError as error:
        return None, words.plain(f"The sum cannot be shown: {error}")


def render(
    seen: Observation, advice: Sequence[Advice] = (), ceilings: Mapping[str, Ceiling] | None = None,
    total: Matrix | None = None, total_words: str = "The sum was not read.",
) -> str:  # fmt: skip
    """The page as text; nothing is read.

    Parameters
    ----------
    advice
        What to change, what matters most first.
    ceilings
        Raw rates by node.
    total, total_words
        As :func:`picture` gives them.
    """
    run = work.of(seen)
    verdict = observe.verdict(seen)
    late = durations.stragglers(run)
    context = {
        "verdict": verdict,
        "first_line": [words.marked(part) for part in verdict.words.partition(". ")],
        "title": words.plain(f"Shardwise: {seen.results.root.resolve().name}"),
        "at": words.moment(seen.at),
        "version": __version__,
        "answers": glance.answers(seen, verdict, run, late, advice),
        "computed": facts.computed(seen, run),
        "sum_figures": _sum_figures(total, total_words),
        "sum_words": total_words,
        "scalars": facts.statistics(seen) if seen.summary_fits else [],
        "elements": heatmap.statistics(total) if total else [],
        "element_file": total_words if total else "",
        "timeline": timeline.figure(run, facts.amount(seen, observe.FAILED) > 0),
        "rates": rates.figure(seen, run, ceilings or {}),
        "durations": durations.figure(run),
        "failures": facts.failures(seen),
        "retries": facts.retries(seen),
        "quarantined": facts.quarantined(seen),
        "problems": [words.plain(problem) for problem in seen.problems[: facts.MOST_ROWS]],
        "more_problems": max(0, len(seen.problems) - facts.MOST_ROWS),
        "devices": facts.devices(seen, run),
        "versions": facts.versions(seen),
        "config": facts.config(seen),
        "advice": [(words.marked(one.words), words.marked(one.evidence)) for one in advice],
        "known": any(bar.held for bar in run.bars),
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
        phases=observe.PHASES,
    )
    made: Any = environment.from_string((_HERE / "page.html.j2").read_text("utf-8"))
    return made
