"""What a results folder shows at one moment, from its files alone, on any machine.

The report, the watch and the metrics all read a run through this module, so they never tell
different stories. Nothing is written, no scheduler is asked, and no file is ever the end of it:
what cannot be read is named among the problems.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from shardwise.devices import quarantine
from shardwise.errors import InputError, IntegrityError, one_line
from shardwise.files import small
from shardwise.files.paths import Results, for_bash
from shardwise.observe.observation import DONE, FailureReason, Flaw, Observation, Sighting
from shardwise.observe.shards import SKEW_SECONDS, FileCache, Sightings, stamped
from shardwise.observe.verdict import _MOST_LETTERS
from shardwise.plan import plan as plans
from shardwise.plan.plan import Plan
from shardwise.records import judge, ledger, logs, receipts
from shardwise.records.receipts import SumReceipt

_FOR_ALL = ("multiply", "pool", "mpi")
"""Rules whose one job computes all shards."""
_MOST_LEDGER = 1 << 30

_AGAIN = "run snakemake as before to make it"


class Observer:
    """Looks at a results folder again and again; what cannot have changed is not read twice.

    ``last`` is what the last look showed, for those who ask between two looks.
    """

    def __init__(self, root: Path) -> None:
        self.results = Results(root)
        self.last: Observation | None = None
        self._sightings = Sightings()
        self._cache = FileCache()

    def look(self, at: float | None = None) -> Observation:
        """What the folder shows now, or as if it were ``at``; never fails for what it holds."""
        at = time.time() if at is None else at
        results = self.results
        plan, problem = self._read(self._plan, results.plan, results.plan_facts)
        shards = self._sightings.look(plan, at) if plan else {}
        problems = [problem, *(self._sightings.problems if plan else ())]
        summary, problem = self._read(self._summary, results.summary)
        problems.append(problem)
        flaw = self._flaw(plan, summary) if plan and summary else None
        if flaw:
            problems.append(flaw.words)
        self.last = Observation(
            results, at, plan, shards, summary,
            quarantined=tuple(quarantine.entries(results, lambda: at)),
            failures=dict(self._failures(plan, shards)),
            problems=tuple(one_line(text)[:_MOST_LETTERS] for text in problems if text),
            flaw=flaw,
        )  # fmt: skip
        return self.last

    def _read(self, read: Any, *paths: Path) -> tuple[Any, str | None]:
        """What some files hold, and what is wrong with them; read again where one has changed."""
        stamp = [stamped(path) for path in paths]
        return self._cache.get(
            paths[-1].name, stamp, lambda: read() if any(stamp) else (None, None)
        )

    def _plan(self) -> tuple[Plan | None, str | None]:
        try:
            return plans.load(self.results.plan), None
        except (InputError, IntegrityError, OSError) as error:
            return None, f"the plan: {error}"

    def _summary(self) -> tuple[SumReceipt | None, str | None]:
        path = self.results.summary
        try:
            return receipts.read(path, SumReceipt), None
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

    def _flaw(self, plan: Plan, summary: SumReceipt) -> Flaw | None:
        """Why a summary is not of the plan and the products that lie there now."""
        try:
            judge.check_summary(plan, summary)
            for name, facts in summary.files.items():
                judge.check_statistic(plan, name, facts)
        except judge.OtherPlan as error:
            return Flaw("stale", f"{error}; {_AGAIN} anew")
        except IntegrityError as error:
            cure = f"remove it (rm -f {for_bash(self.results.summary)})"
            return Flaw("damaged", f"{error}; {cure}, and run snakemake as before")
        raw, problem = self._read(self._ledger, self.results.ledger)
        if raw is None:
            why = problem or "its ledger is missing"
        elif small.checksum(raw) != summary.ledger:
            why = "its ledger has changed since it was written"
        elif raw != ledger.format_table(self._sightings.ledger_lines.values()):
            why = "the products are not those that it was made of"
        else:
            return None
        return Flaw("stale", f"{self.results.summary}: {why}; {_AGAIN} anew")

    def _failures(
        self, plan: Plan | None, shards: Mapping[str, Sighting]
    ) -> Iterator[tuple[str, FailureReason]]:
        """The stages whose output is not there, and whose log has an error.

        A job for all shards is of an earlier run where some have been at work since it ended.
        """
        results = self.results
        whole = bool(shards) and all(one.state == DONE for one in shards.values())
        outputs = {"plan": results.plan_facts}
        if plan is not None:
            outputs |= {"synthesize": results.synthetic} if plan.facts.synthetic else {}
            outputs |= {} if whole else dict.fromkeys(_FOR_ALL, results.multiplied)
            outputs |= {"ledger": results.ledger, "reduce": results.summary}
        planned = stamped(results.plan_facts)
        since = planned[0] / 1e9 if planned else 0.0
        signs = (one.finished or one.started or 0.0 for one in shards.values())
        later = max(since, max(signs, default=0.0) - SKEW_SECONDS)
        for rule, output in outputs.items():
            log = results.log(rule)
            written = stamped(log)
            if written is None or stamped(output):
                continue
            if written[0] / 1e9 < (later if rule in _FOR_ALL else since):
                continue
            text = logs.read_tail(log)
            # Where shards were named, these tell why themselves, as long as they are missing.
            if (errors := logs.find_errors(text)) and not logs.find_failed_shards(text):
                name = log.relative_to(results.root).as_posix()
                reason = one_line(errors[-1])[:_MOST_LETTERS]
                yield rule, FailureReason(reason, name, written[0] / 1e9)


def read_command(results: Results) -> str:
    """The command that made or continues the run, in one line; empty where no run has left it."""
    with suppress(IntegrityError):
        raw = small.read(results.command, follow=False) or b""
        return one_line(raw.decode(errors="replace").strip())
    return ""
