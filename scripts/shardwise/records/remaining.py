"""What a results folder has for a plan, and what remains to be done: asked before any job.

Snakemake's time stamps and records do not tell whose results are there: those of another config,
put there by hand, look as finished as the run's own. So the content of plan, receipts, ledger and
summary is compared with the plan of the present config.
"""

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from shardwise import ALGORITHM
from shardwise.errors import IntegrityError, ShardwiseError
from shardwise.files.paths import STATISTICS, Results, folders, place
from shardwise.plan import plan as plans
from shardwise.plan.plan import Plan
from shardwise.records import judge, ledger, missing, receipts
from shardwise.records.receipts import (
    CopyReceipt,
    ProductReceipt,
    StackReceipt,
    SumReceipt,
    passes,
)

_READ_BYTES = 1 << 28
"""Results of so many bytes or fewer are read and compared with the summary's checksums."""

_WithFile = ProductReceipt | CopyReceipt | StackReceipt

_PER_SHARD = re.compile(r"(\d+)\.(?:npy|json)")


@dataclass(frozen=True)
class RemainingWork:
    """What is left to do for a plan.

    ``missing`` and ``newest`` are those of `missing.ProductScan`. ``unfit`` are files that are
    lost, or not of this plan, or not of the products beside them; each stands for all outputs of
    its job.
    """

    missing: list[str]
    newest: str | None
    unfit: set[Path] = field(default_factory=set)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do up to the results."""
        return not (self.missing or self.unfit)

    @property
    def outdated(self) -> list[Path]:
        """The files that are there but unfit, in the order of their names."""
        return sorted(path for path in self.unfit if path.exists())


def find(plan: Plan, statistics: Sequence[str], *, jobs: bool) -> RemainingWork:
    """Compare a results folder with a plan; nothing is written.

    ``statistics`` are what the reduce is to write. With ``jobs`` each shard is a job of its own,
    whose files are looked at one by one.
    """
    shards = missing.scan_products(plan)
    unfit = set(_unfit(plan, shards, statistics, jobs=jobs))
    return RemainingWork(shards.missing, shards.newest, unfit)


def _unfit(
    plan: Plan, shards: missing.ProductScan, statistics: Sequence[str], *, jobs: bool
) -> Iterator[Path]:
    results = plan.results
    if not _is_of(results, plan):
        yield results.plan
    if shards.missing:
        if plan.facts.synthetic and not holds_stack(plan):
            yield results.synthetic
        if jobs:
            yield from _unfit_shards(plan, shards.missing)
        else:
            yield results.multiplied
    # Of a ledger only the checksums are compared here. Where there is no sum, it is made anew.
    if not (results.summary.exists() and ledger.lists_products(plan, shards.checksum)):
        yield results.ledger
    if not _sums(plan, statistics):
        yield results.summary


def _is_of(results: Results, plan: Plan) -> bool:
    """Whether the plan on the disk is this one, made from the same config."""
    try:
        facts = plans.load_facts(results.plan)
        plans.read_sources(results, facts)
    except ShardwiseError:
        return False
    return (facts.digest, facts.config_digest) == (plan.facts.digest, plan.facts.config_digest)


def holds_stack(plan: Plan) -> bool:
    """Whether ``input.npy`` is the synthetic stack of this plan, by its receipt."""
    results = plan.results
    try:
        receipt = receipts.read(results.synthetic_receipt, StackReceipt)
        receipts.check_file(results.synthetic, receipt.file)
    except IntegrityError:
        return False
    planned = plan.facts.synthetic, ALGORITHM["synthesize"]
    return (receipt.synthetic, receipt.algorithm) == planned


def _unfit_shards(plan: Plan, shards: Sequence[str]) -> Iterator[Path]:
    """The products of missing shards, and their copies unless those are whole."""
    results, copied = plan.results, plan.settings.materialize
    for shard in shards:
        yield results.product(shard)
        if copied and not passes(_check_copy, plan, shard):
            yield results.shard(shard)


def _check_copy(plan: Plan, shard: str) -> None:
    """Refuse a copy of a shard that is not whole, or that holds other matrices."""
    receipts.check_file(plan.results.shard(shard), judge.check_copy(plan, shard).file)


def _sums(plan: Plan, statistics: Sequence[str]) -> bool:
    """Whether the summary vouches for these results, of this plan and of the present ledger."""
    results = plan.results
    try:
        summary = receipts.read(results.summary, SumReceipt)
        judge.check_summary(plan, summary)
        present = ALGORITHM["reduce"], plans.file_digest(results.ledger)
        if (summary.algorithm, summary.ledger) != present or not summary.files.keys() >= {
            *statistics
        }:
            return False
        for name in statistics:
            judge.check_statistic(plan, name, summary.files[name])
            if summary.files[name].bytes <= _READ_BYTES:
                receipts.check_elements(results.statistic(name), summary.files[name])
    except (OSError, IntegrityError):
        return False
    return True


def clear(plan: Plan) -> list[Path]:
    """Take away what an earlier plan has left, before this plan takes its place.

    Copies and products that both plans share stay, and so do results of this plan. The others go
    where their own receipt proves that a run wrote them; else they are moved to ``stale/``, and
    returned under their new names.
    """
    results, lacking = plan.results, set(missing.list_missing(plan))
    ours: list[Path] = []
    strange: list[Path] = []

    def sort(kind: type[_WithFile], paths: Iterable[Path], receipt: Path, file: Path) -> None:
        (ours if passes(_check_written, kind, receipt, file) else strange).extend(paths)

    for shard, paths in _files_per_shard(results.products):
        if shard not in plan.shards or shard in lacking:
            sort(ProductReceipt, paths, results.receipt(shard), results.product(shard))
    for shard, paths in _files_per_shard(results.shards):
        copied = shard in plan.shards and plan.settings.materialize
        if not (copied and passes(_check_copy, plan, shard)):
            sort(CopyReceipt, paths, results.shard_receipt(shard), results.shard(shard))
    if results.synthetic.exists() and not holds_stack(plan):
        paths = [path for path in (results.synthetic, results.synthetic_receipt) if path.exists()]
        sort(StackReceipt, paths, results.synthetic_receipt, results.synthetic)
    _sort_results(plan, ours, strange)
    for path in ours:
        path.unlink(missing_ok=True)
    moved = [_move(results, path) for path in strange]
    for top in (results.products, results.shards):
        for folder in list(folders(top))[1:]:
            with suppress(OSError):  # it is not empty
                folder.rmdir()
    return moved


def _sort_results(plan: Plan, ours: list[Path], strange: list[Path]) -> None:
    """Add the results of an earlier plan to what was written by us, or to what is strange."""
    results, summary = plan.results, None
    with suppress(IntegrityError):
        summary = receipts.read(results.summary, SumReceipt)
        if summary.plan == plan.facts.digest:
            return
    files = summary.files if summary else {}
    for name in STATISTICS:
        path = results.statistic(name)
        if path.exists():
            fits = name in files and passes(receipts.check_file, path, files[name])
            (ours if fits else strange).append(path)
    if results.summary.exists():
        (ours if summary else strange).append(results.summary)


def _files_per_shard(top: Path) -> Iterator[tuple[str, list[Path]]]:
    """The files of each shard in a folder, by its id; another ``.npy`` file counts as a shard's."""
    for folder in folders(top):
        files: dict[str, list[Path]] = {}
        for name in os.listdir(folder):
            match = _PER_SHARD.fullmatch(name)
            if match and folder / match[1] == top / place(match[1]):
                files.setdefault(match[1], []).append(folder / name)
            elif name.endswith(".npy"):
                files.setdefault(name, []).append(folder / name)
        yield from files.items()


def _check_written(kind: type[_WithFile], receipt: Path, file: Path) -> None:
    """Refuse a file or receipt that differs from what a run wrote."""
    receipts.check_file(file, receipts.read(receipt, kind).file)


def _move(results: Results, path: Path) -> Path:
    """Move a file to the same place below ``stale/``, under a name that nothing has there."""
    place = results.stale / path.relative_to(results.root)
    place.parent.mkdir(parents=True, exist_ok=True)
    names = (place.with_name(f"{place.name}.{number}") for number in itertools.count(1))
    target = next(name for name in itertools.chain([place], names) if not name.exists())
    path.rename(target)
    return target
