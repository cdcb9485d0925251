"""The audit of a results folder: whether each file is what its receipt says, and none is missing.

It takes the folder alone, on any machine and any later day, and reads every byte. Nothing is
written. What lies there of other configs is left aside.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from shardwise.errors import InputError, IntegrityError, one_line, some
from shardwise.files import small
from shardwise.files.paths import Results, for_bash
from shardwise.plan import plan as plans
from shardwise.plan.plan import Plan, Shard
from shardwise.records import judge, ledger, receipts
from shardwise.records.receipts import ProductReceipt, StackReceipt, SumReceipt
from shardwise.records.store import Store
from shardwise.units import count, human_bytes

_MOST_LISTED = 20

SCHEMA = 2
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
    summed: list[str] = field(default_factory=list)  # files of the reduce, such as ``sum.npy``
    proven: bool = False
    findings: list[AuditFinding] = field(default_factory=list)
    repair: str | None = None  # for bash; then the next run makes again what is damaged

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
        missing = {finding.shard for finding in self.of(MISSING) if finding.shard}
        if self.verdict == "damaged":
            named = []
            for kind in (DAMAGED, UNKNOWN):
                if names := sorted({found.shard or found.path for found in self.of(kind)}):
                    named.append(f"{len(names)} {kind} ({some(names)})")
            cure = f"; repair: {self.repair}, then snakemake as before" if self.repair else ""
            words = f"NOT whole: {', '.join(named)}{cure}"
        elif missing:
            words = f"unfinished: {len(missing)} of {self.shards} shards are not computed yet"
        elif self.verdict == "unfinished":
            words = f"unfinished: {self.shards} shards are computed, but not summed yet"
        else:
            words = f"whole: {count(self.shards, 'shard')}, {human_bytes(self.nbytes)}, "
            words += f"{', '.join(self.summed)} {'proven' if self.proven else 'not proven'}"
        return one_line(f"{self.root}: {words}")

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
        own = asdict(self) | {"schema": SCHEMA, "verdict": self.verdict, "code": self.code}
        own |= {"line": self.line(), "results": str(own.pop("root")), "bytes": own.pop("nbytes")}
        return json.dumps(own, indent=1) + "\n"


def look(
    root: Path, threads: int = 8, progress: Callable[[str], object] = lambda text: None
) -> Audit:
    """Audit a results folder.

    Each of the threads that read takes about 8 MiB of memory. ``progress`` is called now and then
    with a line. Raises InputError if there is no plan in the folder.
    """
    results = Results(root)
    if not (results.plan.exists() or results.plan_facts.exists()):
        raise InputError(f"{root} holds no plan (plan.tsv, plan.json): not the results of a run")
    audit = Audit(root)
    try:
        plan = plans.load(results.plan)
        _ = plan.sources, plan.per_matrix
    except (InputError, IntegrityError) as error:
        audit.findings = [AuditFinding(DAMAGED, results.plan_facts.name, f"the plan: {error}")]
        files = results.plan_facts, results.plan, results.sources, results.summary
        audit.repair = _command(files, map(for_bash, files))
        return audit
    _Auditor(plan, audit).run(threads, progress)
    return audit


class _Auditor:
    """An audit in progress."""

    def __init__(self, plan: Plan, audit: Audit) -> None:
        self._plan, self._results, self._audit = plan, plan.results, audit
        # A sum had all shards: those missing now are lost.
        store = Store(plan)
        self._missing = DAMAGED if store.is_summed(()) else MISSING
        # Whoever sums next takes the ledger as it is.
        self._listed = self._missing == DAMAGED or store.is_listed()

    def run(self, threads: int, progress: Callable[[str], object]) -> None:
        """Look at everything."""
        audit, plan, lines = self._audit, self._plan, []
        audit.shards, audit.proven = len(plan.shards), True
        stack, receipt = self._results.synthetic, plan.synthetic_receipt
        if receipt and stack.exists():  # it may have been removed
            with self._noting(stack):
                audit.nbytes += receipts.check_elements(
                    stack, receipts.read(receipt, StackReceipt).file
                )
        self._sum()
        looked = ledger.look_at(self._shard, plan.shards.values(), threads, at_once=1)
        for number, (_, (nbytes, receipt)) in enumerate(looked, 1):
            audit.nbytes += nbytes
            if receipt:
                lines.append(ledger.format_line(receipt))
                audit.proven &= receipt.proof is not None
            progress(f"{number} of {len(plan.shards)} shards, {human_bytes(audit.nbytes)} read")
        if self._listed and len(lines) == len(plan.shards):
            with self._noting(self._results.ledger):
                expected = ledger.format_table(lines)
                raw = small.read(self._results.ledger, len(expected) + small.MOST_BYTES)
                if raw != expected:
                    raise IntegrityError(f"{self._results.ledger} is not what the receipts make")
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

    def _shard(self, row: Shard) -> tuple[int, ProductReceipt | None]:
        """Bytes that were read of a product and its copy, and the receipt of a whole product."""
        shard, results, nbytes, whole = row.shard, self._results, 0, None
        product, copy = results.product(row.name), results.shard(row.input_name)
        receipt = copied = None
        with self._noting(results.receipt(row.name), shard):
            try:
                receipt = judge.check_receipt(self._plan, shard)
                nbytes += receipts.check_elements(product, receipt.file)
                whole = receipt
            except receipts.NoReceipt:
                why = "has no receipt" if product.exists() else "is missing"
                self._note(self._missing, product, why, shard)
        made = results.shard_receipt(row.input_name)
        with self._noting(made), suppress(receipts.NoReceipt):
            copied = judge.check_copy(self._plan, shard)
            if copy.exists():  # it may have been removed
                nbytes += receipts.check_elements(copy, copied.file)
        read = receipt and receipt.input_checksum
        if read and copied and read != copied.file.checksum:
            reason = f"was made from matrices with checksum {read}, but the copy has "
            self._note(DAMAGED, product, reason + copied.file.checksum, shard)
            self._note(DAMAGED, made, reason + copied.file.checksum)
        return nbytes, whole

    def _sum(self) -> None:
        """The results over all shards, if they are of this plan."""
        path = self._results.summary
        if self._missing == MISSING:
            self._note(MISSING, path, "nothing is summed yet under this plan")
            return
        with self._noting(path):
            summary = receipts.read(path, SumReceipt)
            judge.check_summary(self._plan, summary)
            for name, facts in summary.files.items():
                file = self._results.statistic(name)
                self._audit.summed.append(file.name)
                with self._noting(file):
                    judge.check_statistic(self._plan, name, facts)
                    self._audit.nbytes += receipts.check_elements(file, facts)
        with self._noting(self._results.label_names):
            judge.check_labels(self._plan)

    def _repair(self) -> str | None:
        """The command after which the next run makes damaged files again, and what needs them."""
        results, damaged = self._results, self._audit.of(DAMAGED)
        names = sorted({self._plan.shards[found.shard].name for found in damaged if found.shard})
        paths = {results.root / found.path for found in damaged if not found.shard}
        if any(path.parent == results.root for path in paths):
            # Snakemake makes nothing again that is only used on the way to what is there.
            paths |= {results.summary, results.ledger}
        words = [ledger.quote_names(results.products, names, ".json")] if names else []
        words += map(for_bash, sorted(paths))
        places = {path.with_suffix(".npy") for path in paths if path.is_relative_to(results.shards)}
        places |= {each(name) for name in names for each in (results.product, results.receipt)}
        return _command(paths | places, words) if words else None


def _command(places: Iterable[Path], words: Iterable[str]) -> str:
    """How to remove words; a folder in place of one of these files may hold anything: it moves."""
    folders = sorted(path for path in places if path.is_dir() and not path.is_symlink())
    moved = [(for_bash(path), for_bash(Path(f"{path}.moved"))) for path in folders]
    moves = [f"mv -T --backup=numbered {path} {aside}" for path, aside in moved]
    return " && ".join([*moves, f"rm -f {' '.join(words)}"])
