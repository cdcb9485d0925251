"""What a results folder shows at one moment, from its files alone, on any machine.

The report, the watch and the metrics all read a run through this module, so they never tell
different stories. Nothing is written, no scheduler is asked, and no file is ever the end of it:
what cannot be read is named among the observations. The words are those of
`shardwise.observation`, the rules for a shard those of `shardwise.sightings`.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shardwise.devices import quarantine
from shardwise.errors import InputError, IntegrityError, one_line, some
from shardwise.files import small
from shardwise.files.paths import Results, for_bash
from shardwise.observation import (
    DAMAGED,
    DONE,
    FAILED,
    RUNNING,
    STATES,
    WAITING,
    Device,
    Failure,
    Flaw,
    Observation,
    Sighting,
    Timeline,
    Verdict,
)
from shardwise.plan import plan as plans
from shardwise.plan.plan import Plan
from shardwise.records import judge, ledger, logs, receipts
from shardwise.sightings import FRESH_SECONDS, SKEW_SECONDS, Sightings, stamped

__all__ = [
    "DAMAGED", "DONE", "FAILED", "FRESH_SECONDS", "RUNNING", "STATES", "WAITING", "Device",
    "Failure", "Flaw", "Observation", "Observer", "Sighting", "Timeline", "Verdict", "verdict",
]  # fmt: skip

_MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError)
"""What reading a file raises that is JSON, but not of ours."""

_FOR_ALL = ("multiply", "pool", "mpi")
"""Rules whose one job computes all shards."""

_MOST_LETTERS = 2000
_MOST_LEDGER = 1 << 30
_MOST_NAMED = 5

_AGAIN = "run snakemake as before to make it"
_UNREAD = "The files were not read again for this: `make verify` does that."


class Observer:
    """Looks at a results folder again and again; what cannot have changed is not read twice."""

    def __init__(self, root: Path) -> None:
        self.results = Results(root)
        self._sightings = Sightings()
        self._kept: dict[str, tuple[Any, Any]] = {}

    def look(self, at: float | None = None) -> Observation:
        """What the folder shows now, or as if it were ``at``; never fails for what it holds."""
        at = time.time() if at is None else at
        results = self.results
        plan, problem = self._read(self._plan, results.plan, results.plan_facts)
        shards = self._sightings.look(plan, at) if plan else {}
        problems = [problem, *(self._sightings.problems if plan else ())]
        summary, problem = self._read(self._summary, results.summary)
        problems.append(problem)
        flaw = self._flaw(plan, shards, summary) if plan and summary else None
        if flaw:
            problems.append(flaw.words)
        return Observation(
            results, at, plan, shards, summary,
            summary_fits=plan is not None and summary is not None and flaw is None,
            quarantined=tuple(quarantine.entries(results, lambda: at)),
            failures=dict(self._failures(plan, shards)),
            problems=tuple(one_line(text)[:_MOST_LETTERS] for text in problems if text),
            flaw=flaw,
        )  # fmt: skip

    def _read(self, read: Any, *paths: Path) -> tuple[Any, str | None]:
        """What some files hold, and what is wrong with them; read again where one has changed."""
        stamp, name = [stamped(path) for path in paths], str(paths[-1])
        known = self._kept.get(name)
        if known is None or known[0] != stamp:
            known = self._kept[name] = stamp, (read() if any(stamp) else (None, None))
        return known[1]

    def _plan(self) -> tuple[Plan | None, str | None]:
        try:
            return plans.load(self.results.plan), None
        except (InputError, IntegrityError, OSError, *_MALFORMED) as error:
            return None, f"the plan: {error}"

    def _summary(self) -> tuple[Mapping[str, Any] | None, str | None]:
        path = self.results.summary
        try:
            return receipts.read(path), None
        except receipts.UnknownSchema as error:
            return None, str(error)
        except IntegrityError as error:
            return None, f"{error}; remove it, and run snakemake as before"

    def _ledger(self) -> tuple[bytes | None, str | None]:
        """The ledger; None where there is none that can be read."""
        try:
            return small.read(self.results.ledger, _MOST_LEDGER), None
        except IntegrityError as error:
            return None, str(error)

    def _flaw(
        self, plan: Plan, shards: Mapping[str, Sighting], summary: Mapping[str, Any]
    ) -> Flaw | None:
        """Why a summary is not of the plan and the products that lie there now."""
        try:
            judge.check_summary(plan, summary)
            for name, facts in summary["files"].items():
                judge.check_statistic(plan, name, facts)
        except judge.OtherPlan as error:
            return Flaw("stale", f"{error}; {_AGAIN} anew")
        except IntegrityError as error:
            cure = f"remove it (rm -f {for_bash(self.results.summary)})"
            return Flaw("damaged", f"{error}; {cure}, and run snakemake as before")
        return self._newer(shards, summary)

    def _newer(self, shards: Mapping[str, Sighting], summary: Mapping[str, Any]) -> Flaw | None:
        """Which products are not those that were summed, by the ledger and by the time."""
        raw, problem = self._read(self._ledger, self.results.ledger)
        summed, own = set((raw or b"").splitlines(keepends=True)), self._sightings.ledger_lines()
        ended = summary.get("finished")
        ended = ended if isinstance(ended, float | int) else 0.0
        newer = [
            name for name, line in own.items()
            if line not in summed or (shards[name].finished or 0.0) > ended + SKEW_SECONDS
        ]  # fmt: skip
        if raw is None:
            why = problem or "its ledger is missing"
        elif newer:
            named = some(newer, _MOST_NAMED)
            why = f"{len(newer)} of {len(shards)} products ({named}) are not those it was made of"
        elif len(own) == len(shards) and raw != ledger.text(own.values()):
            why = "its ledger has changed since it was written"
        else:
            return None
        return Flaw("stale", f"{self.results.summary}: {why}; {_AGAIN} anew")

    def _failures(
        self, plan: Plan | None, shards: Mapping[str, Sighting]
    ) -> Iterator[tuple[str, Failure]]:
        """The stages whose output is not there, and whose log has an error.

        A job for all shards is of an earlier run where some have been at work since it ended.
        """
        results = self.results
        whole = bool(shards) and all(seen.state == DONE for seen in shards.values())
        outputs = {"plan": results.plan_facts}
        if plan is not None:
            outputs |= {"synthesize": results.synthetic} if plan.facts.get("synthetic") else {}
            outputs |= {} if whole else dict.fromkeys(_FOR_ALL, results.multiplied)
            outputs |= {"ledger": results.ledger, "reduce": results.summary}
        planned = stamped(results.plan_facts)
        since = planned[0] / 1e9 if planned else 0.0
        signs = (seen.finished or seen.started or 0.0 for seen in shards.values())
        later = max(since, max(signs, default=0.0) - SKEW_SECONDS)
        for rule, output in outputs.items():
            log = results.log(rule)
            written = stamped(log)
            if written is None or stamped(output):
                continue
            if written[0] / 1e9 < (later if rule in _FOR_ALL else since):
                continue
            text = logs.tail(log)
            # Where shards were named, these tell why themselves, as long as they are missing.
            if (errors := logs.errors(text)) and not logs.failed_shards(text):
                name = log.relative_to(results.root).as_posix()
                reason = one_line(errors[-1])[:_MOST_LETTERS]
                yield rule, Failure(reason, name, written[0] / 1e9)


def verdict(seen: Observation) -> Verdict:
    """Whether the number is right.

    It rests on what the tasks and the reduce have proven and checked when they wrote, and on what
    their receipts say. The elements of the files are not read: the audit (`make verify`) does that.
    """
    if seen.plan is None:
        return _without_plan(seen)
    counts = Counter(sighting.state for sighting in seen.shards.values())
    done, shards = counts[DONE], len(seen.shards)
    if counts[DAMAGED]:
        return _damaged(seen)
    if done < shards:
        named = ((RUNNING, "running"), (FAILED, "failed"))
        parts = [f"{counts[state]} {word}" for state, word in named if counts[state]]
        told = ", ".join([f"{done} of {shards} shards are done", *parts])
        told += "".join(f"; {rule}: {why.reason}" for rule, why in seen.failures.items())
        kind = "failed" if counts[FAILED] or seen.failures else "unfinished"
        return Verdict(kind, f"Not finished: {told}.")
    if seen.summary is None or seen.flaw:
        return _without_sum(seen)
    return _of_sum(seen)


def _without_plan(seen: Observation) -> Verdict:
    if failure := seen.failures.get("plan"):
        return Verdict("failed", f"Nothing is computed: no plan could be made: {failure.reason}.")
    if seen.problems:
        return Verdict("damaged", f"Damaged: {seen.problems[0]}.")
    where = one_line(str(seen.results.root))
    return Verdict("empty", f"Nothing is here yet: {where} holds no plan; run snakemake first.")


def _damaged(seen: Observation) -> Verdict:
    bad = [name for name, sighting in seen.shards.items() if sighting.state == DAMAGED]
    named = some(bad, _MOST_NAMED)
    cure = ledger.remove_receipts(seen.plan, bad[:_MOST_NAMED])  # type: ignore[arg-type]
    more = ", and so on" if len(bad) > _MOST_NAMED else ""
    return Verdict(
        "damaged",
        one_line(
            f"Damaged: the files of {len(bad)} of {len(seen.shards)} shards ({named}) cannot "
            f"be used. To compute them again: {cure}{more}; then snakemake as before."
        ),
    )


def _without_sum(seen: Observation) -> Verdict:
    begin = f"all {len(seen.shards)} shards are done, but"
    if seen.flaw:
        damaged = seen.flaw.kind == "damaged"
        word = "Damaged" if damaged else "Not finished"
        kind = "damaged" if damaged else "unfinished"
        return Verdict(
            kind, one_line(f"{word}: {begin} the sum is not of them: {seen.flaw.words}.")
        )
    for rule in ("ledger", "reduce"):
        if failure := seen.failures.get(rule):
            return Verdict("failed", f"Not finished: {begin} {rule} failed: {failure.reason}.")
    if stamped(seen.results.summary):
        own = [text for text in seen.problems if seen.results.summary.name in text]
        return Verdict("damaged", f"Damaged: {begin} {''.join(own[:1])}.")
    return Verdict("unfinished", f"Not finished: {begin} they are not summed yet.")


def _of_sum(seen: Observation) -> Verdict:
    summary: Mapping[str, Any] = seen.summary  # type: ignore[assignment]
    shards = len(seen.shards)
    unproven = [name for name, sighting in seen.shards.items() if not sighting.proven]
    if summary.get("proven") is not True or unproven:
        why = _why_unproven(seen, unproven)
        words = f"The sum is whole, but nothing has proven it: {why}."
        return Verdict("unproven", f"{words} {_UNREAD}")
    begin = f"all {shards} shards have proven their products"
    if isinstance(summary.get("end_to_end"), dict):
        words = f"The sum is right: {begin}, and it agrees with them end to end."
    else:
        why = summary.get("no_end_to_end")
        because = f" ({one_line(why)[:_MOST_LETTERS]})" if isinstance(why, str) else ""
        words = f"Proven: {begin}; the sum was not compared with them end to end{because}."
    return Verdict("proven", f"{words} {_UNREAD}")


def _why_unproven(seen: Observation, unproven: list[str]) -> str:
    plan: Plan = seen.plan  # type: ignore[assignment]
    if plan.settings["verify"] is False:
        return "verify is false in the config; set it to true and run snakemake again"
    if plan.problem.result is not None:
        return "a function of your own makes the products, and only you know what is right"
    if unproven:
        named = some(unproven, _MOST_NAMED)
        return f"{len(unproven)} of {len(seen.shards)} shards ({named}) have no proof"
    return "its summary does not say that it was"
