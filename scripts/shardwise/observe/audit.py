"""The audit of a results folder: whether each file is what its receipt says, and none is missing.

It takes the folder alone, on any machine and any later day: plan, receipts, ledger and summary say
what each file must be, and every byte is read. Nothing is written. Files of which none of these
speaks are left aside.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from shardwise.errors import InputError, IntegrityError, one_line, some
from shardwise.files.paths import STATISTICS, Results, for_bash
from shardwise.plan import plan as plans
from shardwise.plan.plan import Plan
from shardwise.records import judge, ledger, receipts
from shardwise.records.groups import look_at
from shardwise.records.receipts import ArrayFile, ProductReceipt, StackReceipt, SumReceipt
from shardwise.units import count, human_bytes

_MOST_LISTED = 20
_MOST_AT_ONCE = 100  # shards that a thread takes

SCHEMA = 1
"""Of the JSON that an audit makes."""

DAMAGED, UNKNOWN, MISSING = "damaged", "unknown", "missing"
"""Kinds of findings that decide: against a receipt; of another version's receipt; not made yet."""


@dataclass(frozen=True)
class AuditFinding:
    """Something that is not as it should be.

    ``kind`` is one of the constants above, ``path`` relative within the results folder, and
    ``shard`` the one whose product or receipt it is.
    """

    kind: str
    path: str
    reason: str
    shard: str | None = None


@dataclass
class Audit:
    """What an audit has found."""

    root: Path
    shards: int = 0  # how many the plan has; 0 where it cannot be read
    nbytes: int = 0  # bytes that were read and compared with a checksum
    # Files of the reduce that are there, such as ``sum.npy``.
    summed: list[str] = field(default_factory=list)
    proven: bool = False
    findings: list[AuditFinding] = field(default_factory=list)
    # The commands for bash after which the next run makes again what is damaged.
    repair: str | None = None

    def of(self, kind: str) -> list[AuditFinding]:
        """The findings of a kind."""
        return [finding for finding in self.findings if finding.kind == kind]

    @property
    def verdict(self) -> str:
        """``whole``, ``damaged`` or ``unfinished``."""
        if self.of(DAMAGED) or self.of(UNKNOWN):
            return "damaged"
        return "unfinished" if self.of(MISSING) else "whole"

    @property
    def code(self) -> int:
        """The exit code: 0, 3, or 75 if another run would finish it."""
        return {"whole": 0, "damaged": 3, "unfinished": 75}[self.verdict]

    def line(self) -> str:
        """The verdict in one line."""
        if self.verdict == "damaged":
            words = f"NOT whole: {'; '.join(self._damaged())}"
        elif self.verdict == "unfinished":
            words = self._unfinished()
        else:
            named, how = ", ".join(self.summed), "proven" if self.proven else "not proven"
            shards = count(self.shards, "shard")
            words = f"whole: {shards}, {human_bytes(self.nbytes)}, {named} {how}"
        return one_line(f"{self.root}: {words}")

    def _damaged(self) -> Iterator[str]:
        kinds = {DAMAGED: "damaged", UNKNOWN: "of another version, which has to judge them"}
        for kind, words in kinds.items():
            found = self.of(kind)
            if shards := sorted({finding.shard for finding in found if finding.shard}):
                yield f"{len(shards)} of {self.shards} shards {words} ({some(shards)})"
            if others := sorted({finding.path for finding in found if not finding.shard}):
                yield f"{some(others)} {words}"
        if self.repair:
            yield f"repair: {self.repair}, then snakemake as before"

    def _unfinished(self) -> str:
        shards = {finding.shard for finding in self.of(MISSING) if finding.shard}
        if shards:
            return f"unfinished: {len(shards)} of {self.shards} shards are not computed yet"
        return f"unfinished: all {self.shards} shards are computed, but not summed yet"

    def text(self) -> str:
        """The first findings of each kind, and the verdict."""
        lines = []
        for kind in (MISSING, UNKNOWN, DAMAGED):  # the worst last
            found = self.of(kind)
            lines += [f"{kind}: {each.path}: {each.reason}" for each in found[:_MOST_LISTED]]
            if len(found) > _MOST_LISTED:
                lines.append(f"{kind}: … and {len(found) - _MOST_LISTED} more; --json has all")
        return "".join(f"{one_line(line)}\n" for line in [*lines, self.line()])

    def json(self) -> str:
        """All of it, for programs."""
        found = {
            "schema": SCHEMA, "results": str(self.root), "verdict": self.verdict,
            "code": self.code, "line": self.line(), "shards": self.shards, "bytes": self.nbytes,
            "summed": self.summed, "proven": self.proven, "repair": self.repair,
            "findings": [asdict(finding) for finding in self.findings],
        }  # fmt: skip
        return json.dumps(found, indent=1) + "\n"


def look(
    root: Path, threads: int = 8, progress: Callable[[str], object] = lambda text: None
) -> Audit:
    """Audit a results folder.

    Each of the threads that read takes about 8 MiB of memory. ``progress`` is called now and then
    with a line. Raises InputError if there is no such folder, or no plan in it.
    """
    results = Results(root)
    if not root.is_dir():
        raise InputError(f"{root}: there is no such folder; name the results folder of a run")
    files = results.plan_facts, results.plan, results.sources
    if not (results.plan.exists() or results.plan_facts.exists()):
        raise InputError(f"{root} holds no plan (plan.tsv, plan.json): not the results of a run")
    audit = Audit(root)
    try:
        plan = plans.load(results.plan)
        _ = plan.sources
    except (InputError, IntegrityError) as error:
        audit.findings = [AuditFinding(DAMAGED, results.plan_facts.name, f"the plan: {error}")]
        # Snakemake makes nothing again that is only used on the way to what is there.
        audit.repair = _command(files, [*map(for_bash, (*files, results.summary))])
        return audit
    _Auditor(plan, audit).run(threads, progress)
    return audit


class _Auditor:
    """An audit in progress."""

    def __init__(self, plan: Plan, audit: Audit) -> None:
        self._plan, self._results, self._audit = plan, plan.results, audit
        self._lock = threading.Lock()
        self._copies = self._results.shards.exists()
        self._missing = MISSING  # the kind of finding for a missing file

    def run(self, threads: int, progress: Callable[[str], object]) -> None:
        """Look at everything."""
        audit, plan = self._audit, self._plan
        audit.shards, audit.proven = len(plan.shards), True
        self._stack()
        if self._summary():  # it had all shards: those missing now are lost
            self._missing = DAMAGED
        lines, backends = [], set()
        at_once = max(1, min(_MOST_AT_ONCE, len(plan.shards) // (20 * threads)))
        looked = look_at(
            lambda rows: [self._shard(row.shard) for row in rows],
            plan.shards.values(), threads, at_once,
        )  # fmt: skip
        for number, (_, receipt) in enumerate(looked, 1):
            if receipt:
                lines.append(ledger.format_line(receipt))
                backends.add(receipt.backend)
                audit.proven &= receipt.proof is not None
            progress(f"{number} of {len(plan.shards)} shards, {human_bytes(audit.nbytes)} read")
        if len(backends) > 1:
            why = f"computed by {' and '.join(sorted(backends))}; set backend"
            self._note(DAMAGED, self._results.products, why)
        if self._missing == DAMAGED and len(lines) == len(plan.shards):
            with self._noting(self._results.ledger):
                ledger.compare(plan, lines)
        audit.findings.sort(key=lambda finding: (finding.path, finding.reason))
        audit.repair = self._repair()

    def _note(self, kind: str, path: Path, reason: str, shard: str | None = None) -> None:
        name = str(path.relative_to(self._results.root))
        self._audit.findings.append(AuditFinding(kind, name, reason, shard))

    @contextmanager
    def _noting(self, path: Path, shard: str | None = None) -> Iterator[None]:
        """Add a file that cannot be used to the findings, instead of ending the audit."""
        try:
            yield
        except (IntegrityError, OSError) as error:
            kind = UNKNOWN if isinstance(error, receipts.UnknownSchema) else DAMAGED
            self._note(kind, path, str(error), shard)

    def _compare(self, path: Path, facts: ArrayFile) -> None:
        """Compare every byte of a file with its receipt, which the judge has accepted."""
        receipts.check_elements(path, facts, self._count)

    def _count(self, nbytes: int) -> None:
        with self._lock:
            self._audit.nbytes += nbytes

    # One shard.

    def _shard(self, shard: str) -> ProductReceipt | None:
        """Look at a product, its receipt and its copy; return the receipt of a whole product."""
        product = self._results.product(shard)
        receipt = whole = None
        with self._noting(self._results.receipt(shard), shard):
            try:
                receipt = judge.check_receipt(self._plan, shard)
                self._compare(product, receipt.file)
                whole = receipt
            except receipts.NoReceipt:
                why = "has no receipt" if product.exists() else "is missing"
                self._note(self._missing, product, why, shard)
            except judge.OtherPlan:
                self._note(self._missing, product, "its receipt is of another plan", shard)
        copied = self._copy(shard) if self._copies else None
        read = receipt and receipt.input_checksum
        if read and copied and read != copied:
            reason = f"was made from matrices with checksum {read}, but the copy has {copied}"
            self._note(DAMAGED, product, reason, shard)
            self._note(DAMAGED, self._results.shard(shard), reason)
        return whole

    def _copy(self, shard: str) -> str | None:
        """The checksum in the receipt of a copy; the copy itself may have been removed."""
        copy, path = self._results.shard(shard), self._results.shard_receipt(shard)
        receipt = None
        with self._noting(path), suppress(receipts.NoReceipt, judge.OtherPlan):
            receipt = judge.check_copy(self._plan, shard)
            if copy.exists():
                self._compare(copy, receipt.file)
        return receipt and receipt.file.checksum

    # What belongs to no single shard.

    def _stack(self) -> None:
        """The synthetic stack, which may have been removed."""
        stack, path = self._results.synthetic, self._results.synthetic_receipt
        if self._plan.facts.synthetic and stack.exists():
            with self._noting(stack):
                self._compare(stack, receipts.read(path, StackReceipt).file)

    def _summary(self) -> bool:
        """Whether there is a ``summary.json`` of this plan, after the results that it names."""
        path = self._results.summary
        with self._noting(path):
            try:
                summary = receipts.read(path, SumReceipt)
                judge.check_summary(self._plan, summary)
            except (receipts.NoReceipt, judge.OtherPlan):
                self._note(MISSING, path, "nothing is summed yet under this plan")
                return False
            for name, facts in summary.files.items():
                file = self._results.statistic(name)
                self._audit.summed.append(file.name)
                with self._noting(file):
                    judge.check_statistic(self._plan, name, facts)
                    self._compare(file, facts)
            return True
        return False

    def _repair(self) -> str | None:
        """The command after which the next run makes damaged files again, and what needs them."""
        results, damaged = self._results, self._audit.of(DAMAGED)
        shards = sorted({finding.shard for finding in damaged if finding.shard})
        paths = {results.root / finding.path for finding in damaged if not finding.shard}
        copies = sorted(
            {path.stem for path in paths if path.parent == results.shard(path.stem).parent}
        )
        words = [ledger.quote_names(results.products, shards, ".json")] if shards else []
        for suffix in (".npy", ".json") if copies else ():
            words.append(ledger.quote_names(results.shards, copies, suffix))
        # The summary as well: see `look`.
        if paths & {results.ledger, results.summary, *map(results.statistic, STATISTICS)}:
            words += map(for_bash, (results.summary, results.ledger))
        stack = (results.synthetic, results.synthetic_receipt)
        words += map(for_bash, stack if paths.intersection(stack) else ())
        for each in (results.product, results.receipt):
            paths |= set(map(each, shards))
        for each in (results.shard, results.shard_receipt):
            paths |= set(map(each, copies))
        return _command(paths, words) if words else None


def _command(paths: Iterable[Path], words: list[str]) -> str:
    """How to remove words; a folder in place of one of these files may hold anything: it moves."""
    folders = sorted(path for path in paths if path.is_dir() and not path.is_symlink())
    moved = [(for_bash(path), for_bash(Path(f"{path}.moved"))) for path in folders]
    moves = [f"mv -T --backup=numbered {path} {aside}" for path, aside in moved]
    return " && ".join([*moves, f"rm -f {' '.join(words)}"])
