"""The audit of a results folder: whether each file is what its receipt says, and none is missing.

It needs the folder alone, on any machine and any later day, and reads every byte. It writes
nothing, and ignores files of other configs.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
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
    nbytes: int = 0  # bytes that were read and compared with a checksum
    summed: list[str] = field(default_factory=list)  # files of the reduce, such as ``sum.npy``
    proven: bool = False
    findings: list[AuditFinding] = field(default_factory=list)
    repair: str | None = None  # for bash; after it the next run makes damaged files again

    def of(self, kind: str) -> list[AuditFinding]:
        """The findings of a kind."""
        return [finding for finding in self.findings if finding.kind == kind]

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
            cure = f"; repair: {self.repair}" if self.repair else ""
            cure += ", then start the run again" if cure and not self.merged else ""
            words = f"NOT whole: {', '.join(named)}{cure}"
        elif missing:
            words = f"unfinished: {len(missing)} of {self.shards} shards are not computed yet"
        elif self.verdict == "unfinished":
            words = f"unfinished: {self.shards} shards are computed, but not summed yet"
            words = words if self.shards else "unfinished: no merge into this folder has finished"
        else:
            of = count(self.merged, "folder") if self.merged else count(self.shards, "shard")
            words = f"whole: {of}, {human_bytes(self.nbytes)}, "
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


def look(root: Path) -> Audit:
    """Audit a results folder; log now and then how far it is.

    Raises InputError if there is neither a plan nor a total in the folder.
    """
    results = Results(root)
    if results.merging.is_file():
        return _look_at_total(results)
    if not (results.plan.exists() or results.plan_facts.exists()):
        raise InputError(f"{root} holds no plan (plan.tsv, plan.json): not the results of a run")
    audit = Audit(root)
    try:
        plan = plans.load(results.plan)
        _ = plan.sources, plan.per_matrix
    except (InputError, IntegrityError) as error:
        if isinstance(error.__cause__, PermissionError):
            raise
        audit.findings = [AuditFinding(DAMAGED, results.plan_facts.name, f"the plan: {error}")]
        files = results.plan_facts, results.plan, results.sources, results.summary
        arrays = (path for path in (results.weights, results.labels) if path.exists())
        audit.repair = ledger.repair(results, (), (*files, *arrays))
        return audit
    _look_at_all(plan, audit)
    audit.findings.sort(key=lambda finding: (finding.path, finding.reason))
    audit.repair = _repair(plan, audit.of(DAMAGED))
    return audit


def _look_at_total(results: Results) -> Audit:
    """Audit a total of ``shardwise merge``."""
    audit = Audit(results.root)
    with audit.noting(results.summary):
        try:
            total = receipts.read(results.summary, TotalReceipt)
        except receipts.NoReceipt as error:
            audit.note(MISSING, results.summary, str(error))
            return audit
        judge.refuse_unknown(results.summary, total.files)
        folders = [for_bash(Path(str(source.get("folder")))) for source in total.sources]
        audit.merged, audit.proven = len(folders), total.proven
        _look_at_arrays(audit, results, total.files)
        labels = label_text(*zip(*total.labels, strict=True)) if total.labels else None
        with audit.noting(results.label_names):
            if labels and small.read(results.label_names) != labels:
                raise IntegrityError(f"{results.label_names} is missing, or not what was merged")
        if audit.findings:
            audit.repair = " ".join(["shardwise merge", for_bash(results.root), *folders])
    return audit


def _look_at_all(plan: Plan, audit: Audit) -> None:
    results, store, lines, told = plan.results, Store(plan), [], time.monotonic()
    summed = store.is_summed(())
    listed = summed or store.is_listed()  # the next reduce takes the ledger as it is
    audit.shards, audit.proven = len(plan.shards), True
    stack, stack_receipt = results.synthetic, plan.synthetic_receipt
    if stack_receipt and stack.exists():  # it may have been removed
        with audit.noting(stack):
            facts = receipts.read(stack_receipt, StackReceipt).file
            audit.nbytes += receipts.check_elements(stack, facts)
    if summed:
        _look_at_sum(plan, audit)
    else:
        audit.note(MISSING, results.summary, "nothing is summed yet under this plan")
    # A sum was made of all shards: those missing now are lost.
    look = partial(_look_at_shard, plan, audit, DAMAGED if summed else MISSING)
    looked = ledger.look_at(look, plan.shards.values(), at_once=1)
    for number, (_, (nbytes, receipt)) in enumerate(looked, 1):
        audit.nbytes += nbytes
        if receipt:
            lines.append(ledger.format_line(receipt))
            audit.proven &= receipt.proof is not None
        if time.monotonic() - told >= _PROGRESS_SECONDS:
            told, read = time.monotonic(), human_bytes(audit.nbytes)
            log.info("%d of %d shards, %s read", number, len(plan.shards), read)
    if listed and len(lines) == len(plan.shards):
        with audit.noting(results.ledger):
            expected = ledger.format_table(lines)
            raw = small.read(results.ledger, len(expected) + small.MOST_BYTES)
            if raw != expected:
                raise IntegrityError(f"{results.ledger} does not agree with the receipts")


def _look_at_shard(
    plan: Plan, audit: Audit, missing: str, row: Shard
) -> tuple[int, ProductReceipt | None]:
    """Audit a shard; the bytes read of both files, and the receipt if the product is whole."""
    shard, results, nbytes, whole = row.shard, plan.results, 0, None
    product, copy = results.product(row.name), results.shard(row.input_name)
    receipt = copied = None
    with audit.noting(results.receipt(row.name), shard):
        try:
            receipt = judge.check_receipt(plan, shard)
            nbytes += receipts.check_elements(product, receipt.file)
            whole = receipt
        except receipts.NoReceipt:
            why = "has no receipt" if product.exists() else "is missing"
            audit.note(missing, product, why, shard)
    made = results.shard_receipt(row.input_name)
    with audit.noting(made), suppress(receipts.NoReceipt):
        copied = judge.check_copy(plan, shard)
        if copy.exists():  # it may have been removed
            nbytes += receipts.check_elements(copy, copied.file)
    read = receipt and receipt.input_checksum
    if read and copied and read != copied.file.checksum:
        reason = f"was made from matrices with checksum {read}, but the copy has "
        audit.note(DAMAGED, product, reason + copied.file.checksum, shard)
        audit.note(DAMAGED, made, reason + copied.file.checksum)
    return nbytes, whole


def _look_at_sum(plan: Plan, audit: Audit) -> None:
    """Audit the results over all shards."""
    results = plan.results
    with audit.noting(results.summary):
        summary = judge.check_summary(plan)
        audit.proven &= summary.end_to_end is not None
        _look_at_arrays(audit, results, summary.files, partial(judge.check_statistic, plan))
    with audit.noting(results.label_names):
        judge.check_labels(plan)


def _look_at_arrays(
    audit: Audit, results: Results, files: Mapping[str, ArrayFile],
    check: Callable[[str, ArrayFile], object] = lambda name, facts: None,
) -> None:  # fmt: skip
    """Read the results over all matrices, each after a check of what the receipt says of it."""
    for name, facts in files.items():
        file = results.statistic(name)
        audit.summed.append(file.name)
        with audit.noting(file):
            check(name, facts)
            audit.nbytes += receipts.check_elements(file, facts)


def _repair(plan: Plan, damaged: list[AuditFinding]) -> str | None:
    """The command after which the next run makes damaged files again, and what needs them."""
    results = plan.results
    shards = {found.shard for found in damaged if found.shard}
    paths = {results.root / found.path for found in damaged if not found.shard}
    if any(path.parent == results.root for path in paths):
        # Snakemake does not remake an intermediate file if the files made from it exist.
        paths |= {results.summary, results.ledger}
    return ledger.build_repair(plan, shards, paths) if damaged else None
