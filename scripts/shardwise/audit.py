"""The audit of a results folder: whether each file is what its receipt says, and none is missing.

It takes the folder alone, on any machine and any later day: plan, receipts, ledger and summary say
what each file must be, and every byte is read. Nothing is written. A file that no receipt and no
plan speaks of is foreign, which is no fault.
"""

import csv
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from shardwise import ledger, planfile, receipts, sizes
from shardwise.arrays import file_checksum, padded_header
from shardwise.errors import InputError, IntegrityError, TryAgain, one_line, some
from shardwise.factors import Factor
from shardwise.identity import identity_of, is_as_planned
from shardwise.paths import Results, for_bash
from shardwise.plan import Shard, Source
from shardwise.planfile import Plan
from shardwise.problem import STATISTICS, statistic_dtype
from shardwise.units import human_bytes

SCHEMA = 1
"""Of the JSON that an audit makes."""

DAMAGED, UNKNOWN, MISSING = "damaged", "unknown", "missing"
"""Kinds of findings that decide: against a receipt; of another version's receipt; not made yet."""

INPUT, STALE, FOREIGN = "input", "stale", "foreign"
"""Kinds that decide nothing: input that is not as planned, unless it was asked for; what is of an
earlier plan; what is nobody's."""

KINDS = FOREIGN, STALE, INPUT, MISSING, UNKNOWN, DAMAGED
"""All kinds, the gravest last."""

_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)
"""What reading a receipt raises that is JSON, but has not the keys of one."""


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be, or that is nobody's.

    Attributes
    ----------
    kind
        One of the constants above.
    path
        Of the file; within the results folder relative to that.
    reason
        What was found, and what was expected.
    shard
        Whose file it is, if it is the product, or the receipt, of a shard.
    """

    kind: str
    path: str
    reason: str
    shard: str | None = None


@dataclass
class Audit:
    """What an audit has found.

    Attributes
    ----------
    root
        The results folder, as it was named.
    shards
        How many the plan has; 0 where it cannot be read.
    nbytes
        Bytes that were read and compared with a checksum.
    summed
        Files of the reduce that are there, such as ``sum.npy``.
    proven
        Whether each product was proven before it was written.
    repair
        What `rm -f` is to remove for the next run to make it again, as words for bash.
    inputs
        Whether input that is not as planned counts as damage.
    """

    root: Path
    inputs: bool = False
    shards: int = 0
    nbytes: int = 0
    summed: list[str] = field(default_factory=list)
    proven: bool = False
    findings: list[Finding] = field(default_factory=list)
    repair: list[str] = field(default_factory=list)

    def of(self, kind: str) -> list[Finding]:
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
        said = {"whole": self._whole, "damaged": self._damaged, "unfinished": self._unfinished}
        return one_line(f"{self.root}: {said[self.verdict]()}")

    def _whole(self) -> str:
        named = ", ".join(self.summed)
        how = "proven" if self.proven else "not proven"
        return f"whole: {self.shards} shards, {human_bytes(self.nbytes)}, {named} {how}"

    def _damaged(self) -> str:
        parts = [*self._told(DAMAGED), *self._told(UNKNOWN)]
        if self.inputs and (files := sorted({finding.path for finding in self.of(INPUT)})):
            parts.append(f"input not as it was planned ({some(files)})")
        text = "; ".join(parts)
        if self.repair:
            text += f"; repair: rm -f {' '.join(self.repair)}, then snakemake as before"
        return f"NOT whole: {text}"

    def _told(self, kind: str) -> Iterator[str]:
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

    def json(self) -> str:
        """All of it, for programs."""
        found = {
            "schema": SCHEMA, "results": str(self.root), "verdict": self.verdict,
            "code": self.code, "line": self.line(), "shards": self.shards, "bytes": self.nbytes,
            "summed": self.summed, "proven": self.proven,
            "repair": f"rm -f {' '.join(self.repair)}" if self.repair else None,
            "findings": [asdict(finding) for finding in self.findings],
        }  # fmt: skip
        return json.dumps(found, indent=1) + "\n"


def look(
    root: Path, threads: int = 8, inputs: bool = False,
    progress: Callable[[str], object] = lambda text: None,
) -> Audit:  # fmt: skip
    """Audit a results folder.

    Parameters
    ----------
    threads
        Threads that read; each takes about 8 MiB of memory, with ``inputs`` 40.
    inputs
        Read the input files as well, where they were planned, and compare them with what the
        receipts say was read of them. They then count as files of the results.
    progress
        Told now and then how far it is.

    Raises
    ------
    InputError
        Where there is no such folder, or no plan in it.
    """
    results = Results(root)
    if not root.is_dir():
        raise InputError(f"{root}: there is no such folder; name the results folder of a run")
    if not any(path.exists() for path in (results.plan, results.plan_facts)):
        raise InputError(f"{root}: holds no plan (plan.tsv, plan.json): no results folder of a run")
    made = Audit(root, inputs)
    try:
        plan = planfile.load(results.plan)
        sources = plan.sources
    except (InputError, IntegrityError, *_MALFORMED) as error:
        made.findings.append(Finding(DAMAGED, results.plan_facts.name, f"the plan: {error}"))
        made.repair = [
            for_bash(path) for path in (results.plan_facts, results.plan, results.sources)
        ]
        return made
    _Audit(plan, sources, made, progress).run(threads)
    return made


@dataclass
class _Seen:
    """What was found of a shard.

    Attributes
    ----------
    row
        That of the ledger, where its product is whole.
    alike
        The factors whose bytes are those that the product was computed from.
    """

    findings: list[Finding] = field(default_factory=list)
    row: dict[str, Any] | None = None
    known: set[str] = field(default_factory=set)
    alike: list[str] = field(default_factory=list)


class _Audit:
    """An audit at work."""

    def __init__(
        self, plan: Plan, sources: list[Source], made: Audit, progress: Callable[[str], object]
    ) -> None:
        self._plan, self._results, self._made = plan, plan.results, made
        self._progress = progress
        self._lock = threading.Lock()
        self._known: set[str] = set()
        self._synthetic = bool(plan.facts["synthetic"])
        if self._synthetic:  # the folder may have another name by now
            sources = [replace(source, path=str(self._results.synthetic)) for source in sources]
        self._sources, self._factors = sources, []
        if self._results.synthetic.exists() if self._synthetic else made.inputs:
            self._factors.append(Factor(plan, "input", sources, self._count))
        if made.inputs and plan.problem.right:
            right = [Source(**source) for source in plan.facts["right_sources"]]
            self._factors.append(Factor(plan, "right", right, self._count))
        self._alike: Counter[str] = Counter()

    def run(self, threads: int) -> None:
        """Look at everything."""
        made, plan = self._made, self._plan
        made.shards = len(plan.shards)
        summary = self._summary()
        rows = []
        with ThreadPoolExecutor(threads, "audit") as pool:
            statistics = [
                pool.submit(self._statistic, name, facts)
                for name, facts in (summary or {}).get("files", {}).items()
            ]
            for number, seen in enumerate(pool.map(self._shard, plan.shards.values()), 1):
                made.findings += seen.findings
                self._known |= seen.known
                self._alike.update(seen.alike)
                rows.append(seen.row)
                said = f"{number} of {len(plan.shards)} shards, {human_bytes(made.nbytes)} read"
                self._progress(said)
            made.findings += [finding for future in statistics for finding in future.result()]
        self._judge(rows, summary)
        made.findings += self._input_findings()
        made.findings += [Finding(FOREIGN, name, "no receipt speaks of it")
                          for name in sorted(self._foreign())]  # fmt: skip
        made.repair = self._repair()

    def _judge(self, rows: list[dict[str, Any] | None], summary: dict[str, Any] | None) -> None:
        """What the files mean together: all of one plan, ledger and summary up to date."""
        made, whole = self._made, [row for row in rows if row]
        made.proven = bool(whole) and all(row["proven"] for row in whole)
        backends = sorted({row["backend"] for row in whole})
        if len(backends) > 1:
            made.findings.append(
                Finding(DAMAGED, "products", f"computed by {' and '.join(backends)}; set backend")
            )
        if summary is None:
            if not any(finding.path == "summary.json" for finding in made.findings):
                made.findings.append(Finding(MISSING, "summary.json", "nothing is summed yet"))
            if self._results.ledger.exists() and None not in rows:
                made.findings += self._ledger(whole, STALE)
            return
        # A run that was summed had all of it: what is missing since is lost.
        made.findings = [
            replace(finding, kind=DAMAGED) if finding.kind == MISSING else finding
            for finding in made.findings
        ]
        if None not in rows:
            made.findings += self._ledger(whole, DAMAGED)
        elif not self._results.ledger.exists():
            made.findings.append(Finding(DAMAGED, "ledger.tsv", "it is missing"))

    # One shard.

    def _shard(self, row: Shard) -> _Seen:
        """The product of a shard, its receipt, its copy."""
        seen = _Seen(known={self._name(self._results.telemetry(row.shard))})
        receipt = self._product(row, seen)
        copied = self._copy(row, seen)
        if receipt is None:
            return seen
        read = receipt.get("input_checksum")
        if copied is not None and copied != read:
            reason = f"was made from matrices with checksum {read}, but the copy has {copied}"
            product = self._results.product(row.shard)
            seen.findings.append(self._finding(DAMAGED, product, reason, row.shard))
        self._read_factors(row, receipt, seen)
        return seen

    def _product(self, row: Shard, seen: _Seen) -> dict[str, Any] | None:
        """The receipt of a product, if both are there and whole."""
        path, product = self._results.receipt(row.shard), self._results.product(row.shard)
        if not path.exists():
            why = "has no receipt" if product.exists() else "is missing"
            seen.findings.append(self._finding(MISSING, product, why, row.shard))
            return None
        seen.known |= {self._name(path), self._name(product)}
        try:
            receipt = receipts.read_as_written(path)
            if receipt.get("fingerprint") != row.fingerprint:
                other = "its receipt is of another plan"
                seen.findings.append(self._finding(MISSING, product, other, row.shard))
                return None
            facts = ledger.check(self._plan, row.shard, receipt)["file"]
            self._compare(product, facts)
            seen.row = ledger.row_of(receipt)
        except (IntegrityError, OSError, *_MALFORMED) as error:
            seen.findings.append(self._finding(_kind(error), path, _reason(error), row.shard))
            return None
        return receipt

    def _copy(self, row: Shard, seen: _Seen) -> str | None:
        """The checksum of a shard's copy, if it is there and whole; it may have been removed."""
        path, copy = self._results.shard_receipt(row.shard), self._results.shard(row.shard)
        if not path.exists():
            return None
        seen.known |= {self._name(path), self._name(copy)}
        try:
            receipt = receipts.read_as_written(path)
            if receipt["matrices"] != row.matrices:
                seen.findings.append(self._finding(STALE, copy, "is a copy of an earlier plan"))
                return None
            if not copy.exists():
                return receipt["file"]["checksum"]
            facts = receipt["file"]
            shape = [row.stop - row.start, *self._plan.problem.left]
            _expect(facts, shape, self._plan.dtype, sizes.SHARD_PIECES)
            self._compare(copy, facts)
        except (IntegrityError, OSError, *_MALFORMED) as error:
            seen.findings.append(self._finding(_kind(error), path, _reason(error)))
            return None
        return facts["checksum"]

    def _compare(self, path: Path, facts: dict[str, Any]) -> None:
        """Compare every byte of a file of ours with its receipt."""
        _refuse_pipe(path)
        header = padded_header(tuple(facts["shape"]), np.dtype(facts["dtype"]).newbyteorder("<"))
        with open(path, "rb") as file:
            if file.read(len(header)) != header:
                raise IntegrityError(f"{path}: its header is not what its receipt says")
        if (size := os.stat(path).st_size) != facts["bytes"]:
            raise IntegrityError(f"{path}: has {size} bytes, not {facts['bytes']}")
        pieces = facts["row_bytes"], facts["piece_bytes"]
        found = file_checksum(path, len(header), *pieces, self._count)
        if found != facts["checksum"]:
            raise IntegrityError(f"{path}: has checksum {found}, not {facts['checksum']}")

    def _count(self, nbytes: int) -> None:
        with self._lock:
            self._made.nbytes += nbytes

    # What all shards come to.

    def _ledger(self, rows: list[dict[str, Any]], kind: str) -> list[Finding]:
        try:
            _refuse_pipe(self._results.ledger)
            ledger.compare(self._plan, rows)
        except (IntegrityError, csv.Error) as error:
            return [self._finding(kind, self._results.ledger, _reason(error))]
        return []

    def _summary(self) -> dict[str, Any] | None:
        """``summary.json``, where it is whole and of this plan."""
        path, plan = self._results.summary, self._plan
        if not path.exists():
            return None
        try:
            summary = receipts.read_as_written(path)
            if summary["plan"] != plan.facts["digest"]:
                self._made.findings += [
                    self._finding(STALE, path, "is of an earlier plan"),
                    self._finding(MISSING, path, "nothing is summed yet under this plan"),
                ]
                return None
            said = {key: summary[key] for key in ("matrices", "shards", "product", "keep")}
            files = summary["files"]
            names = [f"{name}.npy" for name in files]
        except (IntegrityError, OSError, *_MALFORMED) as error:
            self._made.findings.append(self._finding(_kind(error), path, _reason(error)))
            return None
        planned = {
            "matrices": plan.problem.matrices, "shards": len(plan.shards),
            "product": plan.problem.product, "keep": plan.settings["keep"],
        }  # fmt: skip
        if said != planned or not set(files) <= set(STATISTICS):
            reason = f"says {said} and {names}, but the plan {planned}"
            self._made.findings.append(self._finding(DAMAGED, path, reason))
            return None
        self._made.summed = names
        self._known |= set(names)
        return summary

    def _statistic(self, name: str, facts: dict[str, Any]) -> list[Finding]:
        path, problem = self._results.statistic(name), self._plan.problem
        try:
            dtype = statistic_dtype(name, problem.product_dtype)
            shape = list(problem.product_shape)
            nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
            _expect(facts, shape, dtype, sizes.checksum_pieces(nbytes))
            self._compare(path, facts)
        except (IntegrityError, OSError, *_MALFORMED) as error:
            return [self._finding(DAMAGED, path, _reason(error))]
        return []

    # The input.

    def _read_factors(self, row: Shard, receipt: dict[str, Any], seen: _Seen) -> None:
        """Read what a shard was computed from, where the plan says that it lies."""
        for factor in self._factors:
            if (expected := factor.expected(receipt)) is None:
                continue  # of an earlier version, which took no checksum of B
            inside = self._synthetic and factor.name == "input"
            try:
                if inside:
                    _refuse_pipe(self._results.synthetic)
                checksum = factor.checksum(row)
            except (IntegrityError, InputError, OSError) as error:
                reason = _reason(error)
            else:
                if checksum == expected:
                    seen.alike.append(factor.name)
                    continue
                what = f"matrices {row.start} to {row.stop}" if factor.name == "input" else "B"
                reason = f"{what}: checksum {checksum}, but {expected} was read"
            paths = factor.files(row)
            own = paths[0] if len(paths) == 1 else f"{factor.name} of shard {row.shard}"
            kind = DAMAGED if inside else INPUT
            seen.findings.append(self._finding(kind, Path(own), reason))

    def _input_findings(self) -> list[Finding]:
        """Input files that are not as they were planned; those whose bytes are need not be."""
        right = [Source(**source) for source in self._plan.facts["right_sources"]]
        found, shards = [], len(self._plan.shards)
        for name, sources in (("input", self._sources), ("right", right)):
            for source in sources if self._alike[name] < shards else ():
                if not source.identity[:1].isdigit():
                    continue
                try:
                    status = os.stat(source.path)
                except OSError as error:
                    reason = f"is not there: {error.strerror}"
                else:
                    if is_as_planned(source, status):
                        continue
                    reason = (
                        f"is {identity_of(status)} (size, times of the last write and the last "
                        f"change in ns, inode), but {source.identity} was planned"
                    )
                found.append(Finding(INPUT, source.path, reason))
        return found

    # All else.

    def _foreign(self) -> Iterator[str]:
        """Files of the folder that nobody speaks of; logs and unfinished work are left aside."""
        results, root = self._results, self._results.root
        own = {getattr(results, name) for name, value in vars(Results).items()
               if isinstance(value, property)}  # fmt: skip
        known = self._known | {self._name(path) for path in own}
        for folder, folders, files in os.walk(root):
            here = Path(folder)
            if here == root:
                folders[:] = [name for name in folders if name not in ("logs", "partial")]
            links = [name for name in folders if (here / name).is_symlink()]
            for name in (*files, *links):
                if (path := self._name(here / name)) not in known:
                    yield path

    def _repair(self) -> list[str]:
        results, damaged = self._results, self._made.of(DAMAGED)
        shards = sorted({finding.shard for finding in damaged if finding.shard})
        words = []
        if shards:
            folder = results.receipt("").parent
            words.append(ledger.names_for_bash(folder, shards, ".json"))
        paths = {results.root / finding.path for finding in damaged if not finding.shard}
        copies = sorted(path.stem for path in paths if path.parent == results.shard("").parent)
        for suffix in (".npy", ".json") if copies else ():
            words.append(ledger.names_for_bash(results.shard("").parent, copies, suffix))
        statistics = {results.statistic(name) for name in STATISTICS} | {results.summary}
        if paths & statistics:
            words.append(for_bash(results.summary))
        words += [for_bash(path) for path in (results.ledger, results.synthetic) if path in paths]
        return words

    def _finding(self, kind: str, path: Path, reason: str, shard: str | None = None) -> Finding:
        return Finding(kind, self._name(path), reason, shard)

    def _name(self, path: Path) -> str:
        return (
            path.relative_to(self._results.root).as_posix()
            if path.is_relative_to(self._results.root)
            else str(path)
        )


def _refuse_pipe(path: Path) -> None:
    """Refuse what is there and is no file: opening a pipe would wait for ever."""
    if path.exists() and not path.is_file():
        raise IntegrityError(f"{path}: is not a file")


def _expect(
    facts: dict[str, Any], shape: list[int], dtype: str, pieces: tuple[int, int]
) -> None:  # fmt: skip
    """Refuse a receipt that does not say of its file what the plan makes it."""
    said = facts["shape"], facts["dtype"], (facts["row_bytes"], facts["piece_bytes"])
    if said != (shape, dtype, pieces):
        raise IntegrityError(f"its receipt says {said}, but the plan {(shape, dtype, pieces)}")


def _kind(error: BaseException) -> str:
    return UNKNOWN if isinstance(error, receipts.UnknownSchema) else DAMAGED


def _reason(error: BaseException) -> str:
    """What went wrong; of a receipt without its keys, that it has none."""
    return f"is no receipt ({error!r})" if isinstance(error, _MALFORMED) else str(error)
