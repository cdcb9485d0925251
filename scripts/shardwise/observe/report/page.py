"""The page: an observation, put into its template."""

from contextlib import suppress
from pathlib import Path

import jinja2
from markupsafe import Markup

from shardwise import __version__, host
from shardwise.errors import InputError, IntegrityError, one_line
from shardwise.files.commit import commit
from shardwise.observe import run_table
from shardwise.observe import verdict as verdicts
from shardwise.observe.folder import read_command
from shardwise.observe.observation import Observation
from shardwise.observe.report import matrix, plots, tables
from shardwise.observe.report.matrix import Matrix
from shardwise.records import receipts
from shardwise.records.timeline import Span
from shardwise.units import any_clock, plain, seconds

_HERE = Path(__file__).parent
_MOST_COPIES = 1000
"""Receipts of copies that are read; of more, some at equal distances."""


def write(seen: Observation, output: Path | None = None) -> Path:
    """Commit the page, by default to ``report.html`` in the results folder."""
    page = render(seen)
    path = output or seen.results.report
    with commit(path) as file:
        file.write(page.encode("utf-8", "replace"))
    return path


def render(seen: Observation) -> str:
    """The page as text; of the results, it reads only the sum."""
    run, verdict = run_table.of(seen), verdicts.verdict(seen)
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    total, why = _total(seen)
    return environment.from_string((_HERE / "page.html.j2").read_text("utf-8")).render(
        seen=seen, run=run, verdict=verdict, tables=tables, plots=plots, total=total, why=why,
        first_line=[marked(part) for part in verdict.words.partition(". ")],
        title=plain(f"Shardwise: {seen.results.root.resolve().name}"),
        at=any_clock(seen.at),
        version=__version__,
        verify=host.command("verify"),
        command=read_command(seen.results),
        bad=verdict.kind in ("failed", "damaged") or bool(seen.failures),
        ended=verdict.kind in ("proven", "unproven"),
        spent=tables.spent(seen, run, _copies(seen)),
        seconds=seconds,
        style=Markup((_HERE / "page.css").read_text("utf-8")),
    )  # fmt: skip


def _copies(seen: Observation) -> list[Span]:
    """When shards were copied, by the receipts of the copies."""
    spans = []
    copied = seen.plan is not None and seen.plan.settings.materialize
    for shard in list(seen.shards)[:: 1 + len(seen.shards) // _MOST_COPIES] if copied else ():
        with suppress(IntegrityError):
            own = receipts.read(seen.results.shard_receipt(shard), receipts.CopyReceipt)
            spans.append((own.started, own.finished))
    return spans


def _total(seen: Observation) -> tuple[Matrix | None, str]:
    """The sum with its name, or why it is not shown, such as that it is of other products."""
    if not seen.summary_fits:
        if not seen.results.summary.exists():
            return None, "Nothing is summed yet."
        return None, "There is a sum, but nothing says that it is of this plan and these products."
    found = seen.summary.files if seen.summary else {}
    named = next((name for name in ("sum", "mean") if name in found), None)
    if named is None:
        return None, "Neither sum nor mean is among the statistics, so there is no picture."
    try:
        return matrix.read(seen.results.statistic(named)), f"{named}.npy"
    except InputError as error:
        return None, plain(f"The sum cannot be shown: {error}")


def marked(text: object) -> Markup:
    """A sentence as HTML, with the parts between backticks as code."""
    return Markup("").join(
        Markup("<code>{}</code>" if i % 2 else "{}").format(piece)
        for i, piece in enumerate(one_line(str(text)).split("`"))
    )
