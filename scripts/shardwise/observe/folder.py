"""What a results folder shows at one moment, from its files alone, on any machine.

The report, the watch and the metrics all read a run through this module, so they never contradict
each other. It writes nothing and asks no scheduler. A file that cannot be read is listed among the
problems; it does not stop the look.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from shardwise.errors import IntegrityError, ShardwiseError, one_line
from shardwise.files import small
from shardwise.files.paths import Results, for_bash
from shardwise.observe.observation import DONE, FailureReason, Observation, Sighting, Verdict
from shardwise.observe.shards import SKEW_SECONDS, FileCache, Sightings, stamped
from shardwise.observe.verdict import _MOST_LETTERS
from shardwise.plan import plan as plans
from shardwise.plan.plan import Plan
from shardwise.records import judge, ledger, logs, receipts
from shardwise.records.receipts import SumReceipt

_FOR_ALL = ("multiply", "pool", "mpi")
"""Rules whose one job computes all shards."""
_MOST_LEDGER = 1 << 30

_T = TypeVar("_T")

_AGAIN = "run snakemake as before to make it"


class Observer:
    """Looks at a results folder repeatedly; files that cannot have changed are not read again.

    ``last`` is the result of the last look, for callers between two looks.
    """

    def __init__(self, root: Path) -> None:
        self.results = Results(root)
        self.last: Observation | None = None
        self._sightings = Sightings()
        self._cache = FileCache()

    def look(self, at: float | None = None) -> Observation:
        """What the folder shows now, or at time ``at``; its content never makes this fail."""
        at = time.time() if at is None else at
        results = self.results
        plan, error = self._read(lambda: plans.load(results.plan), results.plan, results.plan_facts)
        problems = [f"the plan: {error}"] if error else []
        shards = self._sightings.look(plan, at) if plan else {}
        problems += self._sightings.problems if plan else ()
        summary, error = self._read(
            lambda: receipts.read(results.summary, SumReceipt), results.summary
        )
        flaw = self._flaw(plan, summary) if plan and summary else None
        if error:
            known = not isinstance(error, receipts.UnknownSchema)
            cure = "; remove it, and run snakemake as before" * known
            flaw = Verdict("damaged", f"{error}{cure}")
        problems += [flaw.words] if flaw else []
        self.last = Observation(
            results, at, plan, shards, summary,
            failures=dict(self._failures(plan, shards)),
            problems=tuple(one_line(text)[:_MOST_LETTERS] for text in problems),
            flaw=flaw,
        )  # fmt: skip
        return self.last

    def _read(self, read: Callable[[], _T], *paths: Path) -> tuple[_T | None, Exception | None]:
        """The content of some files, or why they cannot be read; read again if one has changed."""

        def attempt() -> tuple[_T | None, Exception | None]:
            try:
                return read(), None
            except (ShardwiseError, OSError) as error:
                return None, error

        stamp = [stamped(path) for path in paths]
        return self._cache.get(paths[-1].name, stamp, attempt) if any(stamp) else (None, None)

    def _flaw(self, plan: Plan, summary: SumReceipt) -> Verdict | None:
        """Why a summary does not fit the present plan and products."""
        try:
            judge.check_summary(plan, summary)
            for name, facts in summary.files.items():
                judge.check_statistic(plan, name, facts)
        except judge.OtherPlan as error:
            return Verdict("unfinished", f"{error}; {_AGAIN} anew")
        except IntegrityError as error:
            cure = f"remove it (rm -f {for_bash(self.results.summary)})"
            return Verdict("damaged", f"{error}; {cure}, and run snakemake as before")
        path = self.results.ledger
        raw, error = self._read(lambda: small.read(path, _MOST_LEDGER), path)
        if raw is None:
            why = str(error or "its ledger is missing")
        elif small.checksum(raw) != summary.ledger:
            why = "its ledger has changed since it was written"
        elif raw != ledger.format_table(self._sightings.ledger_lines.values()):
            why = "the products are not those that it was made of"
        else:
            return None
        return Verdict("unfinished", f"{self.results.summary}: {why}; {_AGAIN} anew")

    def _failures(
        self, plan: Plan | None, shards: Mapping[str, Sighting]
    ) -> Iterator[tuple[str, FailureReason]]:
        """The stages whose output is missing and whose log has an error.

        A job for all shards belongs to an earlier run if shards have been at work since it ended.
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
            # Shards that the log names have the reason in their own logs, while they are missing.
            if (errors := logs.find_errors(text)) and not logs.find_failed_shards(text):
                name = log.relative_to(results.root).as_posix()
                reason = one_line(errors[-1])[:_MOST_LETTERS]
                yield rule, FailureReason(reason, name, written[0] / 1e9)


def read_command(results: Results) -> str:
    """The command that made or continues the run, in one line; empty if no run has left it."""
    with suppress(IntegrityError):
        raw = small.read(results.command, follow=False) or b""
        return one_line(raw.decode(errors="replace").strip())
    return ""
