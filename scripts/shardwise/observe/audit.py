"""The audit of a results folder: whether each file is what its receipt says, and none is missing.

It takes the folder alone, on any machine and any later day: plan, receipts, ledger and summary say
what each file must be, and every byte is read. Nothing is written. A file that no receipt and no
plan speaks of is foreign, which is no fault.
"""

import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path

from shardwise.errors import InputError, IntegrityError, TryAgain, one_line, some
from shardwise.files.paths import STATISTICS, Results, for_bash, place
from shardwise.observe.factors import Factor
from shardwise.plan import plan as plans
from shardwise.plan.identity import identity_of_array, is_as_planned
from shardwise.plan.plan import Plan, Shard, Source
from shardwise.records import judge, ledger, receipts
from shardwise.records.groups import look_at
from shardwise.records.receipts import ArrayFile, ProductReceipt, StackReceipt, SumReceipt
from shardwise.units import human_bytes

_MOST_NAMED, _MOST_LISTED = 5, 20
_MOST_AT_ONCE = 100  # shards that a thread takes

SCHEMA = 1
"""Of the JSON that an audit makes."""

DAMAGED, UNKNOWN, MISSING = "damaged", "unknown", "missing"
"""Kinds of findings that decide: against a receipt; of another version's receipt; not made yet."""

INPUT, STALE, FOREIGN = "input", "stale", "foreign"
"""Kinds that decide nothing: input that is not as planned, unless it was asked for; what is of an
earlier plan; what is nobody's."""

LISTED = STALE, INPUT, MISSING, UNKNOWN, DAMAGED
"""Kinds that are told file by file, the gravest last; `Audit.describe_foreign` sums up the rest."""

_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)
"""What reading a plan raises that is JSON, but has not the keys of one."""


@dataclass(frozen=True)
class AuditFinding:
    """Something that is not as it should be, or that is nobody's.

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
    inputs: bool = False  # whether input that is not as planned counts as damage
    shards: int = 0  # how many the plan has; 0 where it cannot be read
    nbytes: int = 0  # bytes that were read and compared with a checksum
    # Files of the reduce that are there, such as ``sum.npy``.
    summed: list[str] = field(default_factory=list)
    proven: bool = False
    findings: list[AuditFinding] = field(default_factory=list)
    # Commands for bash after which the next run makes again what is damaged.
    repair: list[str] = field(default_factory=list)

    def add(self, kind: str, path: str, reason: str) -> None:
        """Note something that is of no single shard."""
        self.findings.append(AuditFinding(kind, path, reason))

    def of(self, kind: str) -> list[AuditFinding]:
        """The findings of a kind."""
        return [finding for finding in self.findings if finding.kind == kind]

    @property
    def verdict(self) -> str:
        """``whole``, ``damaged`` or ``unfinished``."""
        if self.of(DAMAGED) or self.of(UNKNOWN) or (self.inputs and self.of(INPUT)):
            return "damaged"
        return "unfinished" if self.of(MISSING) else "whole"

    @property
    def code(self) -> int:
        """The exit code: 0, 3, or 75, as a run that goes on would finish it."""
        kinds = {"whole": 0, "damaged": IntegrityError.exit_code}
        return kinds.get(self.verdict, TryAgain.exit_code)

    def line(self) -> str:
        """The verdict in one line."""
        if self.verdict == "damaged":
            words = self._damaged()
        elif self.verdict == "unfinished":
            words = self._unfinished()
        else:
            named, how = ", ".join(self.summed), "proven" if self.proven else "not proven"
            words = f"whole: {self.shards} shards, {human_bytes(self.nbytes)}, {named} {how}"
        return one_line(f"{self.root}: {words}")

    def _damaged(self) -> str:
        parts = [*self._named(DAMAGED), *self._named(UNKNOWN)]
        if self.inputs and (files := sorted({finding.path for finding in self.of(INPUT)})):
            parts.append(f"input not as it was planned ({some(files)})")
        text = "; ".join(parts)
        if self.repair:
            text += f"; repair: {' && '.join(self.repair)}, then snakemake as before"
        return f"NOT whole: {text}"

    def _named(self, kind: str) -> Iterator[str]:
        words = "damaged" if kind == DAMAGED else "of another version, which has to judge them"
        shards = sorted({finding.shard for finding in self.of(kind) if finding.shard})
        if shards:
            yield f"{len(shards)} of {self.shards} shards {words} ({some(shards)})"
        others = sorted({finding.path for finding in self.of(kind) if not finding.shard})
        if others:
            yield f"{some(others)} {words}"

    def _unfinished(self) -> str:
        shards = {finding.shard for finding in self.of(MISSING) if finding.shard}
        if shards:
            return f"unfinished: {len(shards)} of {self.shards} shards are not computed yet"
        return f"unfinished: all {self.shards} shards are computed, but not summed yet"

    def describe_foreign(self) -> str:
        """What lies in the folder and is not part of the run, in one line."""
        found, inside = self.of(FOREIGN), Results(self.root)
        ours = {inside.shard("").parent.name, inside.product("").parent.name}
        tops = ((finding.path, finding.path.partition("/")) for finding in found)
        names = dict.fromkeys(
            f"{top}/" if below and top not in ours else path for path, (top, _, below) in tops
        )
        many = len(found) != 1
        return one_line(
            f"{len(found)} other file{'s' if many else ''} in {self.root} {'are' if many else 'is'}"
            f" not part of this run ({some(names, _MOST_NAMED)}){'; --json lists them' * many}"
        )

    def text(self) -> str:
        """The first findings of each kind, what is not part of the run, and the verdict."""
        lines = []
        for kind in LISTED:
            found = self.of(kind)
            lines += [f"{kind}: {each.path}: {each.reason}" for each in found[:_MOST_LISTED]]
            if len(found) > _MOST_LISTED:
                lines.append(f"{kind}: … and {len(found) - _MOST_LISTED} more; --json has all")
        lines += [self.describe_foreign()] if self.of(FOREIGN) else []
        return "".join(f"{one_line(line)}\n" for line in [*lines, self.line()])

    def json(self) -> str:
        """All of it, for programs."""
        found = {
            "schema": SCHEMA, "results": str(self.root), "verdict": self.verdict,
            "code": self.code, "line": self.line(), "shards": self.shards, "bytes": self.nbytes,
            "summed": self.summed, "proven": self.proven,
            "repair": " && ".join(self.repair) or None,
            "findings": [asdict(finding) for finding in self.findings],
        }  # fmt: skip
        return json.dumps(found, indent=1) + "\n"


def look(
    root: Path, threads: int = 8, inputs: bool = False,
    progress: Callable[[str], object] = lambda text: None,
) -> Audit:  # fmt: skip
    """Audit a results folder.

    Each of the threads that read takes about 8 MiB of memory, with ``inputs`` 40: the input files
    are then read as well, where they were planned, compared with what the receipts say was read of
    them, and count as files of the results. ``progress`` is told now and then how far it is. Raises
    InputError where there is no such folder, or no plan in it.
    """
    results = Results(root)
    if not root.is_dir():
        raise InputError(f"{root}: there is no such folder; name the results folder of a run")
    if not any(path.exists() for path in (results.plan, results.plan_facts)):
        raise InputError(f"{root} holds no plan (plan.tsv, plan.json): no results folder of a run")
    audit = Audit(root, inputs)
    try:
        plan, sources = _read_plan(results)
    except (InputError, IntegrityError, *_MALFORMED) as error:
        name = results.plan_facts.name
        audit.add(DAMAGED, name, f"the plan: {error}")
        paths = _plan_files(results)
        # Snakemake makes nothing again that is only used on the way to what is there.
        audit.repair = _commands(paths, [for_bash(path) for path in (*paths, results.summary)])
        return audit
    _Auditor(plan, sources, audit, progress).run(threads)
    return audit


def _plan_files(results: Results) -> tuple[Path, ...]:
    return results.plan_facts, results.plan, results.sources


def _read_plan(results: Results) -> tuple[Plan, list[Source]]:
    for path in _plan_files(results):
        if path.exists() and not path.is_file():  # opening a pipe would wait for ever
            raise IntegrityError(f"{path} is not a file")
    plan = plans.load(results.plan)
    return plan, plan.sources


@dataclass
class _ShardAudit:
    """What was found of a shard.

    ``line`` is that of the ledger, where its product is whole; ``alike`` are the factors whose
    bytes are those that the product was computed from.
    """

    findings: list[AuditFinding] = field(default_factory=list)
    line: bytes | None = None
    backend: str | None = None
    proven: bool = False
    alike: list[str] = field(default_factory=list)


class _Auditor:
    """An audit at work."""

    def __init__(
        self, plan: Plan, sources: list[Source], audit: Audit, progress: Callable[[str], object]
    ) -> None:
        self._plan, self._results, self._audit = plan, plan.results, audit
        self._progress = progress
        self._lock = threading.Lock()
        fixed = (getattr(self._results, name) for name in vars(Results))
        self._known = {self._name(path) for path in fixed if isinstance(path, Path)}
        names = Results(Path())
        self._kinds = [
            str(kind("?")).split("?")
            for kind in (names.product, names.receipt, names.shard, names.shard_receipt)
        ]
        self._copies = self._results.shards.exists()
        self._synthetic = bool(plan.facts.synthetic)
        if self._synthetic:  # the folder may have another name by now
            sources = [replace(source, path=str(self._results.synthetic)) for source in sources]
        self._sources, self._factors = sources, []
        if self._results.synthetic.exists() if self._synthetic else audit.inputs:
            self._factors.append(Factor(plan, "input", sources, self._count))
        if audit.inputs and plan.problem.right:
            right = list(plan.facts.right_sources)
            self._factors.append(Factor(plan, "right", right, self._count))
        self._alike: Counter[str] = Counter()

    def run(self, threads: int) -> None:
        """Look at everything."""
        audit, plan = self._audit, self._plan
        audit.shards = len(plan.shards)
        summary = self._summary()
        seen: list[_ShardAudit] = []
        with ThreadPoolExecutor(threads, "audit") as pool:
            statistics = [
                pool.submit(self._statistic, name, facts)
                for name, facts in (summary.files if summary else {}).items()
            ]
            size = max(1, min(_MOST_AT_ONCE, len(plan.shards) // (20 * threads)))
            found = look_at(self._shards, plan.shards.values(), threads, size)
            for number, (_, one) in enumerate(found, 1):
                audit.findings += one.findings
                self._alike.update(one.alike)
                seen.append(one)
                said = f"{number} of {len(plan.shards)} shards, {human_bytes(audit.nbytes)} read"
                self._progress(said)
            audit.findings += [finding for future in statistics for finding in future.result()]
        self._judge(seen, summary)
        audit.findings += self._input_findings() + self._stack_receipt()
        audit.findings += [AuditFinding(FOREIGN, name, "is not part of this run")
                          for name in sorted(self._foreign())]  # fmt: skip
        audit.repair = self._repair()

    def _judge(self, seen: list[_ShardAudit], summary: SumReceipt | None) -> None:
        """What the files mean together: all of one plan, ledger and summary up to date."""
        audit, lines = self._audit, [one.line for one in seen if one.line]
        audit.proven = bool(lines) and all(one.proven for one in seen if one.line)
        backends = sorted({one.backend for one in seen if one.backend})
        if len(backends) > 1:
            audit.add(DAMAGED, "products", f"computed by {' and '.join(backends)}; set backend")
        complete = len(lines) == len(seen)
        if summary is None:
            if not any(finding.path == "summary.json" for finding in audit.findings):
                audit.add(MISSING, "summary.json", "nothing is summed yet")
            if self._results.ledger.exists() and complete:
                audit.findings += self._ledger(lines, STALE)
            return
        # A run that was summed had all of it: what is missing since is lost.
        audit.findings = [
            replace(finding, kind=DAMAGED) if finding.kind == MISSING else finding
            for finding in audit.findings
        ]
        if complete:
            audit.findings += self._ledger(lines, DAMAGED)
        elif not self._results.ledger.exists():
            audit.add(DAMAGED, "ledger.tsv", "it is missing")

    # One shard.

    def _shards(self, rows: list[Shard]) -> list[_ShardAudit]:
        return [self._shard(row) for row in rows]

    def _shard(self, row: Shard) -> _ShardAudit:
        """The product of a shard, its receipt, its copy.

        What a receipt says of the input counts where the file beside it is damaged, too.
        """
        seen = _ShardAudit()
        receipt, copied = self._product(row, seen), self._copy(row, seen)
        read = receipt and receipt.input_checksum
        if read and copied and read != copied:
            reason = f"was made from matrices with checksum {read}, but the copy has {copied}"
            for path, shard in (
                (self._results.product(row.shard), row.shard),
                (self._results.shard(row.shard), None),
            ):
                seen.findings.append(self._finding(DAMAGED, path, reason, shard))
        self._read_factors(row, receipt, copied, seen)
        return seen

    def _product(self, row: Shard, seen: _ShardAudit) -> ProductReceipt | None:
        """The receipt of a product, for what it says that the product was made from."""
        path, product = self._results.receipt(row.shard), self._results.product(row.shard)
        receipt = None
        with self._noting(seen.findings, path, row.shard):
            try:
                receipt = judge.check_receipt(self._plan, row.shard)
            except (receipts.NoReceipt, judge.OtherPlan) as error:
                why = "has no receipt" if product.exists() else "is missing"
                if isinstance(error, judge.OtherPlan):
                    why = "its receipt is of another plan"
                seen.findings.append(self._finding(MISSING, product, why, row.shard))
                return None
            self._compare(product, receipt.file)
            seen.line, seen.backend = ledger.format_line(receipt), receipt.backend
            seen.proven = receipt.proof is not None
        return receipt

    def _copy(self, row: Shard, seen: _ShardAudit) -> str | None:
        """The checksum in the receipt of a copy; the copy itself may have been removed."""
        if not self._copies:
            return None
        copy, path = self._results.shard(row.shard), self._results.shard_receipt(row.shard)
        receipt = None
        with self._noting(seen.findings, path), suppress(receipts.NoReceipt):
            try:
                receipt = judge.check_copy(self._plan, row.shard)
            except judge.OtherPlan:
                why = "is a copy of an earlier plan"
                left = [each for each in (copy, path) if each.exists()]
                seen.findings += [self._finding(FOREIGN, each, why) for each in left]
                return None
            if copy.exists():
                self._compare(copy, receipt.file)
        return receipt and receipt.file.checksum

    @contextmanager
    def _noting(
        self, findings: list[AuditFinding], path: Path, shard: str | None = None
    ) -> Iterator[None]:
        """Add what cannot be used to some findings, instead of ending there."""
        try:
            yield
        except (IntegrityError, OSError) as error:
            kind = UNKNOWN if isinstance(error, receipts.UnknownSchema) else DAMAGED
            findings.append(self._finding(kind, path, str(error), shard))

    def _compare(self, path: Path, facts: ArrayFile) -> None:
        """Compare every byte of a file of ours with its receipt, which the judge has taken."""
        receipts.check_elements(path, facts, self._count)

    def _count(self, nbytes: int) -> None:
        with self._lock:
            self._audit.nbytes += nbytes

    # What all shards come to.

    def _ledger(self, lines: list[bytes], kind: str) -> list[AuditFinding]:
        try:
            ledger.compare(self._plan, lines)
        except IntegrityError as error:
            return [self._finding(kind, self._results.ledger, str(error))]
        return []

    def _summary(self) -> SumReceipt | None:
        """``summary.json``, where it is whole and of this plan."""
        path, findings = self._results.summary, self._audit.findings
        with self._noting(findings, path), suppress(receipts.NoReceipt):
            summary = receipts.read(path, SumReceipt)
            try:
                judge.check_summary(self._plan, summary)
            except judge.OtherPlan as error:
                missing = "nothing is summed yet under this plan"
                findings += [self._finding(STALE, path, str(error)),
                             self._finding(MISSING, path, missing)]  # fmt: skip
                return None
            self._audit.summed = [f"{name}.npy" for name in summary.files]
            self._known |= set(self._audit.summed)
            return summary
        return None

    def _statistic(self, name: str, facts: ArrayFile) -> list[AuditFinding]:
        findings: list[AuditFinding] = []
        path = self._results.statistic(name)
        with self._noting(findings, path):
            judge.check_statistic(self._plan, name, facts)
            self._compare(path, facts)
        return findings

    # The input.

    def _stack_receipt(self) -> list[AuditFinding]:
        """The receipt of the synthetic stack; its matrices are compared shard by shard."""
        findings: list[AuditFinding] = []
        stack, path = self._results.synthetic, self._results.synthetic_receipt
        if self._synthetic and stack.exists():
            with self._noting(findings, path):
                receipts.check_file(stack, receipts.read(path, StackReceipt).file)
        return findings

    def _read_factors(
        self, row: Shard, receipt: ProductReceipt | None, copied: str | None, seen: _ShardAudit
    ) -> None:
        """Read what a shard was computed from, where the plan says that it lies."""
        for factor in self._factors:
            known = {factor.expected(receipt), copied if factor.name == "input" else None} - {None}
            if not known:
                continue  # of an earlier version, which took no checksum of B
            inside = self._synthetic and factor.name == "input"
            try:
                if inside and not self._results.synthetic.is_file():
                    raise IntegrityError(f"{self._results.synthetic} is not a file")
                checksum = factor.checksum(row)
            except (IntegrityError, InputError, OSError) as error:
                reason = str(error)
            else:
                if checksum in known:
                    seen.alike.append(factor.name)
                    continue
                what = f"matrices {row.start} to {row.stop}" if factor.name == "input" else "B"
                expected = " or ".join(sorted(known))
                reason = f"{what}: checksum {checksum}, but {expected} was read"
            paths = factor.files(row)
            own = paths[0] if len(paths) == 1 else f"{factor.name} of shard {row.shard}"
            kind = DAMAGED if inside else INPUT
            seen.findings.append(self._finding(kind, Path(own), reason))

    def _input_findings(self) -> list[AuditFinding]:
        """Input files that are not as they were planned; those whose bytes are need not be."""
        right = list(self._plan.facts.right_sources)
        found, shards = [], len(self._plan.shards)
        for name, sources in (("input", self._sources), ("right", right)):
            for source in sources if self._alike[name] < shards else ():
                if source.identity[:1].isdigit() and (reason := _changed(source)):
                    found.append(AuditFinding(INPUT, source.path, reason))
        return found

    # All else.

    def _foreign(self) -> Iterator[str]:
        """Files that are not part of the run; logs and unfinished work are left aside."""
        # As text: there may be a million, and to make a Path of each takes as long as to read it.
        root, known, shards = str(self._results.root), self._known, self._plan.shards
        for folder, folders, files in os.walk(root):
            if folder == root:
                folders[:] = [name for name in folders if name not in ("logs", "partial")]
            links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
            before = os.path.join(os.path.relpath(folder, root), "").removeprefix("./")
            for file in (*files, *links):
                name, shard = f"{before}{file}", file.partition(".")[0]
                if name not in known and not (shard in shards and name in self._names_of(shard)):
                    yield name

    def _names_of(self, shard: str) -> list[str]:
        """The names that a shard gives to its files, from the results folder on."""
        return [f"{before}{place(shard)}{after}" for before, after in self._kinds]

    def _repair(self) -> list[str]:
        """Commands after which the next run makes again what is damaged, and what is made of it."""
        results, damaged = self._results, self._audit.of(DAMAGED)
        shards = sorted({finding.shard for finding in damaged if finding.shard})
        paths = {results.root / finding.path for finding in damaged if not finding.shard}
        copies = sorted(
            {path.stem for path in paths if path.parent == results.shard(path.stem).parent}
        )
        words = []
        if shards:
            words.append(ledger.quote_names(results.products, shards, ".json"))
        for suffix in (".npy", ".json") if copies else ():
            words.append(ledger.quote_names(results.shards, copies, suffix))
        # The summary as well: see `look`.
        if paths & {results.ledger, results.summary, *map(results.statistic, STATISTICS)}:
            words.append(for_bash(results.summary))
            if any(finding.path == results.ledger.name for finding in self._audit.findings):
                words.append(for_bash(results.ledger))
        stack = (results.synthetic, results.synthetic_receipt)
        words += map(for_bash, stack if paths.intersection(stack) else ())
        paths |= {each(shard) for shard in shards for each in (results.product, results.receipt)}
        paths |= {
            each(shard) for shard in copies for each in (results.shard, results.shard_receipt)
        }
        return _commands(paths, words)

    def _finding(
        self, kind: str, path: Path, reason: str, shard: str | None = None
    ) -> AuditFinding:
        return AuditFinding(kind, self._name(path), reason, shard)

    def _name(self, path: Path) -> str:
        root = self._results.root
        return str(path.relative_to(root) if path.is_relative_to(root) else path)


def _commands(paths: Iterable[Path], words: list[str]) -> list[str]:
    """How to move out of the way what is a folder in place of one of these files, and remove words.

    A folder may hold anything, so it is not removed.
    """
    commands = []
    for path in sorted(path for path in paths if path.is_dir() and not path.is_symlink()):
        aside = next(p for n in count() if not (p := Path(f"{path}.moved{n or ''}")).exists())
        commands.append(f"mv {for_bash(path)} {for_bash(aside)}")
    return [*commands, *([f"rm -f {' '.join(words)}"] if words else [])]


def _changed(source: Source) -> str | None:
    """How an input file differs from what was planned; None where it does not."""
    try:
        status = os.stat(source.file)
    except OSError as error:
        return f"is not there: {error.strerror}"
    if is_as_planned(source, status):
        return None
    present = identity_of_array(source.file, status)
    return (
        f"is {present} (size, times of the last write and the last change in ns, "
        f"inode), but {source.identity} was planned"
    )
