"""The audit of a results folder: whether each file is what its receipt says, and none is missing.

It needs the folder alone, on any machine and any later day, and reads every byte. It writes
nothing, and ignores files of other configs.
"""

import json
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from shardwise.errors import InputError, IntegrityError, one_line, some
from shardwise.files import small
from shardwise.files.paths import Results, for_bash
from shardwise.plan import plan as plans
from shardwise.plan.plan import Plan, Shard, label_text
from shardwise.records import judge, ledger, receipts
from shardwise.records.receipts import ArrayFile, ProductReceipt, StackReceipt, TotalReceipt
from shardwise.records.store import Store
from shardwise.units import count, human_bytes

log = logging.getLogger("shardwise")

_MOST_LISTED = 20
_MOST_AT_ONCE = 1000  # shards that are handed to threads
_PROGRESS_SECONDS = 10.0

SCHEMA = 2
"""The version of the JSON that an audit makes."""

DAMAGED, UNKNOWN, MISSING = "damaged", "unknown", "missing"
"""Kinds of findings: not as the receipt says; a receipt of another version; not made yet."""


@dataclass(frozen=True)
class AuditFinding:
    """Something that is not as it should be.

    ``kind`` is one of the constants above, ``path`` is relative to the results folder, and
    ``shard`` is the shard whose product or receipt that file is.
    """

    kind: str
    path: str
    reason: str
    shard: str | None = None


@dataclass
class Audit:
    """What an audit has found."""

    root: Path
    shards: int = 0  # how many the plan has; 0 if it cannot be read
    merged: int = 0  # folders added up in this total; 0 for a run
    sizes: list[int] = field(default_factory=list)  # of files that were compared with a checksum
    summed: list[str] = field(default_factory=list)  # files of the reduce, such as ``sum.npy``
    proven: bool = False
    findings: list[AuditFinding] = field(default_factory=list)
    repair: str | None = None  # for bash; after it the next run makes damaged files again

    def note(self, kind: str, path: Path, reason: str, shard: str | None = None) -> None:
        """Add a finding."""
        name = str(path.relative_to(self.root))
        self.findings.append(AuditFinding(kind, name, reason, shard))

    @contextmanager
    def noting(self, path: Path, shard: str | None = None) -> Iterator[None]:
        """Add a file that cannot be used to the findings, instead of ending the audit.

        A file that this user may not read ends it: to repair such a file could remove a whole one.
        """
        try:
            yield
        except PermissionError:
            raise
        except (IntegrityError, OSError) as error:
            kind = UNKNOWN if isinstance(error, receipts.UnknownSchema) else DAMAGED
            self.note(kind, path, str(error), shard)

    def compare(self, path: Path, facts: ArrayFile) -> None:
        """Compare every byte of a file with its receipt."""
        self.sizes.append(receipts.check_elements(path, facts))

    def of(self, kind: str) -> list[AuditFinding]:
        """The findings of a kind."""
        return [finding for finding in self.findings if finding.kind == kind]

    @property
    def nbytes(self) -> int:
        """How many bytes were read and compared with a checksum."""
        return sum(self.sizes)

    @property
    def verdict(self) -> str:
        """``whole``, ``damaged`` or ``unfinished``."""
        if self.of(DAMAGED) or self.of(UNKNOWN):
            return "damaged"
        return "unfinished" if self.findings else "whole"

    @property
    def code(self) -> int:
        """The exit code: 0, 3, or 75 if another run would finish it."""
        return {"whole": 0, "damaged": 3, "unfinished": 75}[self.verdict]

    def line(self) -> str:
        """The verdict in one line."""
        by_kind = {k: sorted({f.shard or f.path for f in self.of(k)}) for k in (DAMAGED, UNKNOWN)}
        if self.verdict == "damaged":
            named = [f"{len(names)} {k} ({some(names)})" for k, names in by_kind.items() if names]
            words = f"NOT whole: {', '.join(named)}"
            words += f"; repair: {self.repair}" if self.repair else ""
            words += ", then start the run again" if self.repair and not self.merged else ""
        elif self.verdict == "whole":
            of = count(self.merged, "folder") if self.merged else count(self.shards, "shard")
            proven = "proven" if self.proven else "not proven"
            words = f"whole: {of}, {human_bytes(self.nbytes)}, {', '.join(self.summed)} {proven}"
        elif missing := {finding.shard for finding in self.findings if finding.shard}:
            words = f"unfinished: {len(missing)} of {self.shards} shards are not computed yet"
        elif self.shards:
            words = f"unfinished: {self.shards} shards are computed, but not summed yet"
        else:
            words = "unfinished: no merge into this folder has finished"
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
        own |= {"line": self.line(), "results": str(own.pop("root"))}
        own["bytes"] = sum(own.pop("sizes"))
        return json.dumps(own, indent=1) + "\n"


def look(root: Path) -> Audit:
    """Audit a results folder; log now and then how far it is.

    Raises InputError if there is neither a plan nor a total in the folder.
    """
    results, audit = Results(root), Audit(root)
    if results.merging.is_file():
        _look_at_total(results, audit)
        return audit
    if not (results.plan.exists() or results.plan_facts.exists()):
        raise InputError(f"{root} holds no plan (plan.tsv, plan.json): not the results of a run")
    try:
        plan = plans.load(results.plan)
        _ = plan.sources, plan.per_matrix
    except (InputError, IntegrityError) as error:
        if isinstance(error.__cause__, PermissionError):
            raise
        audit.note(DAMAGED, results.plan_facts, f"the plan: {error}")
        files = [results.plan_facts, results.plan, results.sources, results.summary]
        files += [path for path in (results.weights, results.labels) if path.exists()]
        audit.repair = f"rm -f {' '.join(map(for_bash, files))}"
        return audit
    _look_at_run(plan, audit)
    audit.findings.sort(key=lambda finding: (finding.path, finding.reason))
    if damaged := audit.of(DAMAGED):
        paths = {root / found.path for found in damaged if not found.shard}
        if any(path.parent == root for path in paths):
            # Snakemake does not remake an intermediate file if the files made from it exist.
            paths |= {results.summary, results.ledger}
        audit.repair = ledger.build_repair(plan, {f.shard for f in damaged if f.shard}, paths)
    return audit


def _look_at_total(results: Results, audit: Audit) -> None:
    """Audit a total of ``shardwise merge``."""
    with audit.noting(results.summary):
        try:
            total = receipts.read(results.summary, TotalReceipt)
        except receipts.NoReceipt as error:
            audit.note(MISSING, results.summary, str(error))
            return
        folders = [for_bash(Path(str(source.get("folder")))) for source in total.sources]
        audit.merged, audit.proven = len(folders), total.proven
        for name, facts in total.files.items():
            audit.summed.append(f"{name}.npy")
            with audit.noting(results.statistic(name)):
                audit.compare(results.statistic(name), facts)
        labels = label_text(*zip(*total.labels, strict=True)) if total.labels else None
        with audit.noting(results.label_names):
            if labels and small.read(results.label_names) != labels:
                raise IntegrityError(f"{results.label_names} is missing, or not what was merged")
        if audit.findings:
            audit.repair = " ".join(["shardwise merge", for_bash(results.root), *folders])


def _look_at_run(plan: Plan, audit: Audit) -> None:
    results, store = plan.results, Store(plan)
    summed = store.is_summed(())
    listed = summed or store.is_listed()  # the next reduce takes the ledger as it is
    audit.shards, audit.proven, stack = len(plan.shards), True, results.synthetic
    if plan.synthetic_receipt and stack.exists():  # it may have been removed
        with audit.noting(stack):
            audit.compare(stack, receipts.read(plan.synthetic_receipt, StackReceipt).file)
    if summed:
        with audit.noting(results.summary):
            summary = judge.check_summary(plan)
            audit.proven = summary.end_to_end is not None
            for name, facts in summary.files.items():
                audit.summed.append(f"{name}.npy")
                with audit.noting(results.statistic(name)):
                    judge.check_statistic(plan, name, facts)
                    audit.compare(results.statistic(name), facts)
        with audit.noting(results.label_names):
            judge.check_labels(plan)
    else:
        audit.note(MISSING, results.summary, "nothing is summed yet under this plan")
    # A sum was made of all shards: those missing now are lost.
    table = ledger.format_table(_look_at_shards(plan, audit, DAMAGED if summed else MISSING))
    if listed and not any(finding.shard for finding in audit.findings):
        with audit.noting(results.ledger):
            if small.read(results.ledger, len(table) + small.MOST_BYTES) != table:
                raise IntegrityError(f"{results.ledger} does not agree with the receipts")


def _look_at_shards(plan: Plan, audit: Audit, missing: str) -> Iterator[ProductReceipt]:
    """Audit all shards; yield the receipts of their products."""
    rows, told = list(plan.shards.values()), time.monotonic()
    look = partial(_look_at_shard, plan, audit, missing)
    with ThreadPoolExecutor(ledger.THREADS, "look") as pool:
        for at in range(0, len(rows), _MOST_AT_ONCE):
            for number, receipt in enumerate(pool.map(look, rows[at : at + _MOST_AT_ONCE]), at + 1):
                if receipt:
                    audit.proven &= receipt.proof is not None
                    yield receipt
                if time.monotonic() - told >= _PROGRESS_SECONDS:
                    told, read = time.monotonic(), human_bytes(audit.nbytes)
                    log.info("%d of %d shards, %s read", number, len(rows), read)


def _look_at_shard(plan: Plan, audit: Audit, missing: str, row: Shard) -> ProductReceipt | None:
    """Audit the product and the copy of a shard; the receipt of the product."""
    shard, results, receipt, copied = row.shard, plan.results, None, None
    product, copy = results.product(row.name), results.shard(row.input_name)
    with audit.noting(results.receipt(row.name), shard):
        try:
            receipt = judge.check_product(plan, shard)
            audit.compare(product, receipt.file)
        except receipts.NoReceipt:
            why = "has no receipt" if product.exists() else "is missing"
            audit.note(missing, product, why, shard)
    made = results.shard_receipt(row.input_name)
    with audit.noting(made), suppress(receipts.NoReceipt):
        copied = judge.check_copy(plan, shard)
        if copy.exists():  # it may have been removed
            audit.compare(copy, copied.file)
    read = receipt and receipt.input_checksum
    if read and copied and read != copied.file.checksum:
        reason = f"was made from matrices with checksum {read}, but the copy has "
        audit.note(DAMAGED, product, reason + copied.file.checksum, shard)
        audit.note(DAMAGED, made, reason + copied.file.checksum)
    return receipt
