"""The five questions that the page answers, each in a line."""

from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.observe.advice import Advice
from shardwise.observe.observation import DAMAGED, DONE, FAILED, Observation, Verdict
from shardwise.observe.report import tables, timeline, words
from shardwise.observe.report.durations import STRAGGLER, Straggler
from shardwise.observe.report.parts import Cell
from shardwise.observe.report.work import Run

GOOD, BAD, OPEN = "good", "bad", "open"
"""How an answer is marked: nothing to do; look there; not known, or not yet."""

_LEVEL = 0.02  # a share of time that is not worth a word

_MOST_OF_REASON = 140


@dataclass(frozen=True)
class Answer:
    """A question, its answer, and the part of the page that has more."""

    question: str
    answer: Cell
    mark: str
    section: str


def answers(
    seen: Observation, verdict: Verdict, run: Run, late: Sequence[Straggler],
    advice: Sequence[Advice],
) -> list[Answer]:  # fmt: skip
    """The five, in the order in which they are asked."""
    return [
        _right(seen, verdict), _time(seen, run), _slow(run, late), _failed(seen), _change(advice),
    ]  # fmt: skip


def _right(seen: Observation, verdict: Verdict) -> Answer:
    told = {
        "proven": ("Yes, it is proven", GOOD),
        "unproven": ("Nothing says otherwise, but it is not proven", OPEN),
        "unfinished": ("There is none yet", OPEN),
        "failed": ("There is none: shards or stages failed", BAD),
        "damaged": ("It cannot be trusted: something is damaged", BAD),
        "empty": ("There is no run here", OPEN),
    }
    answer, mark = told.get(verdict.kind, (verdict.words, OPEN))
    if verdict.kind == "unfinished" and seen.shards:
        answer += f": {tables.amount(seen, DONE):,} of {len(seen.shards):,} shards are done"
    return Answer("Is the number right?", f"{answer}.", mark, "computed")


def _time(seen: Observation, run: Run) -> Answer:
    question, shares = "What took the time?", timeline.time_shares(run)
    if not shares:
        return Answer(question, "Not known: no shard says when it was at work.", OPEN, "time")
    idle = shares["idle"]
    if shares["unknown"] > 0.5:
        beside = f"the devices were {run.idle_name} {words.share(idle)} of the time"
        return Answer(question, f"The receipts do not say; {beside}.", OPEN, "time")
    ranked = sorted(((part, name) for name, part in shares.items() if part >= _LEVEL), reverse=True)
    named = ", ".join(
        f"{timeline.named(run, name)} {words.share(part)}" for part, name in ranked[:3]
    )
    summing = tables.reduce_seconds(seen) or 0.0
    beside = f"; summing took {words.seconds(summing)} more" if summing > run.seconds / 5 else ""
    told = f"{named[:1].upper()}{named[1:]} of the devices' time{beside}."
    return Answer(question, told, BAD if idle > 0.25 else GOOD, "time")


def _slow(run: Run, late: Sequence[Straggler]) -> Answer:
    question, slow = "Which device was slow?", tables.slow_devices(run)
    if slow:
        device, part = slow[0]
        more = f", and {len(slow) - 1} more" if len(slow) > 1 else ""
        told = f"{device.name}: {words.share(part)} of the rate of the fastest of its kind{more}."
        return Answer(question, told, BAD, "devices")
    if late:
        shards = words.count(len(late), "shard")
        told = f"None as a whole, but {shards} took more than {STRAGGLER:g} times the median."
        return Answer(question, told, OPEN, "shards")
    if any(device.matrix_rate is None for device in run.devices):
        return Answer(question, "Not known yet: some have done no shard.", OPEN, "devices")
    if len(run.devices) > 1:
        return Answer(question, "None: those of a kind were about as fast.", GOOD, "devices")
    if run.devices:
        return Answer(question, "There was but one, and no shard was late.", GOOD, "devices")
    return Answer(question, "None is known to have worked.", OPEN, "devices")


def _failed(seen: Observation) -> Answer:
    question = "What failed?"
    bad, damaged = tables.amount(seen, FAILED), tables.amount(seen, DAMAGED)
    again = sum(own.attempts > 1 and own.state == DONE for own in seen.shards.values())
    told = []
    if bad:
        told.append(f"{words.count(bad, 'shard')} failed{_first_reason(seen, bad)}")
    if damaged:
        told.append(f"{words.count(damaged, 'shard')} damaged")
    if seen.failures:
        told.append(f"stage {', '.join(map(words.plain, list(seen.failures)[:3]))} failed")
    barred = sum(not entry.noted_only for entry in seen.quarantined)
    if barred:
        told.append(f"{words.count(barred, 'device')} in quarantine")
    if seen.problems:
        told.append(words.count(len(seen.problems), "remark"))
    stale = seen.flaw is not None and seen.flaw.kind == "stale" and len(seen.problems) == 1
    mark = BAD if told[stale:] else OPEN if told or not seen.shards else GOOD
    if not told:
        told.append("nothing in the end" if seen.shards else "nothing is known to have")
    if again:
        told.append(f"{words.count(again, 'shard')} took more than one attempt")
    said = "; ".join(told)
    return Answer(question, f"{said[:1].upper()}{said[1:]}.", mark, "failures")


def _first_reason(seen: Observation, bad: int) -> str:
    """Why the first of the shards that failed did."""
    reasons = (own.failure.reason for own in seen.shards.values() if own.failure)
    reason = words.plain(next(reasons, ""))
    short = reason if len(reason) <= _MOST_OF_REASON else f"{reason[: _MOST_OF_REASON - 1]}…"
    return f" ({'the first: ' if bad > 1 else ''}{short})" if short else ""


def _change(advice: Sequence[Advice]) -> Answer:
    question = "What should I change?"
    if not advice:
        return Answer(question, "There is no advice.", OPEN, "advice")
    more = f" ({len(advice) - 1} more)" if len(advice) > 1 else ""
    return Answer(question, words.marked(_first_sentence(advice[0].words)) + more, OPEN, "advice")


def _first_sentence(text: str) -> str:
    """The sentence that says what to do; the part below has the rest."""
    first, stop, _ = text.partition(". ")
    return first + stop.strip()
