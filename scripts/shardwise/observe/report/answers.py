"""The questions that people have after a run, each with its answer in a line."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardwise.observe.advice import Advice
from shardwise.observe.observation import DAMAGED, FAILED, Observation
from shardwise.observe.run_table import STRAGGLER, RunTable
from shardwise.units import count, plain, seconds

GOOD, BAD, OPEN = "good", "bad", "open"
"""How an answer is marked: nothing to do; look there; not known, or not yet."""


@dataclass(frozen=True)
class Answer:
    """A question, its answer, and the part of the page that has more."""

    question: str
    answer: str
    mark: str
    section: str


def answers(
    seen: Observation, run: RunTable, spent: Sequence[tuple[str, str, float]],
    advice: Sequence[Advice],
) -> Iterator[Answer]:  # fmt: skip
    """The answers, in the order in which people ask; what nobody can know is left out."""
    yield _failed(seen)
    if spent:
        total = sum(part for _, _, part in spent)
        _, most, part = max(spent, key=lambda row: row[2])
        told = f"{seconds(total)}, most of it {most} ({seconds(part)})."
        yield Answer("How long did it take?", told if len(spent) > 1 else f"{seconds(total)}.",
                     GOOD, "run")  # fmt: skip
    if run.enough:
        yield _slow(run)
    if advice:
        more = f" ({len(advice) - 1} more)" if len(advice) > 1 else ""
        first = plain(advice[0].words.partition(". ")[0].partition(": ")[0])
        yield Answer("What should I change?", f"{first}.{more}", OPEN, "advice")


def _failed(seen: Observation) -> Answer:
    states = seen.counts
    barred = len(seen.quarantined)
    bad = [state for state in (FAILED, DAMAGED) if states[state]]
    parts = [f"{count(states[state], 'shard')} {state}" for state in bad]
    if seen.failures:
        parts.append(f"stage {', '.join(map(plain, list(seen.failures)[:3]))} failed")
    if barred:
        parts.append(f"{count(barred, 'device')} in quarantine")
    if seen.problems:
        parts.append(count(len(seen.problems), "remark"))
    stale = seen.flaw is not None and seen.flaw.kind == "stale" and len(seen.problems) == 1
    mark = BAD if parts[stale:] else OPEN if parts or not seen.shards else GOOD
    text = "; ".join(parts) or ("Nothing" if seen.shards else "Nothing is known to have")
    return Answer("What failed?", f"{text[:1].upper()}{text[1:]}.", mark, "failures")


def _slow(run: RunTable) -> Answer:
    question = "Was anything slow?"
    if len(run.slow):
        worst = run.slow.iloc[0]
        more = f", and {len(run.slow) - 1} more" if len(run.slow) > 1 else ""
        words = f"{worst.label}: {worst.slower:.1f} times as long per matrix as its kind{more}."
        return Answer(question, words, BAD, "devices")
    if len(run.late):
        words = f"{count(len(run.late), 'shard')} took over {STRAGGLER:g} times the median."
        return Answer(question, words, OPEN, "time")
    return Answer(question, "No device and no shard.", GOOD, "time")
