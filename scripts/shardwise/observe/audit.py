"""The audit of a results folder: every byte is compared with the receipts. It writes nothing."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from shardwise.errors import IntegrityError, log, one_line, some
from shardwise.files import small
from shardwise.files.paths import Results, for_bash
from shardwise.plan import plan as plan_file
from shardwise.plan.plan import Plan, Shard, label_text
from shardwise.records import ledger, receipts
from shardwise.records.receipts import ArrayFile, ProductReceipt, StackReceipt, SumReceipt
from shardwise.records.store import Store
from shardwise.units import count, human_bytes

_AT_ONCE = 64  # shards handed to threads, at least


@dataclass
class Audit:
    """What an audit has found: what is damaged or missing, each path with the reason."""

    root: Path
    parts: str = ""  # what was summed, such as ``4 shards``
    sizes: list[int] = field(default_factory=list)  # of files that were compared with a checksum
    summed: list[str] = field(default_factory=list)  # files of the reduce, such as ``sum.npy``
    proven: bool = True
    damaged: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    repair: str = ""  # for bash

    @contextmanager
    def noting(self, path: Path) -> Iterator[None]:
        """Note that a file is damaged or missing; one that is only unreadable here is an error."""
        try:
            yield
        except receipts.UnknownSchema:
            raise
        except (IntegrityError, OSError) as error:
            # A sum was made of all shards: those missing now are lost.
            later = isinstance(error, receipts.NoReceipt) and not self.summed
            (self.missing if later else self.damaged)[str(path.relative_to(self.root))] = str(error)

    @property
    def verdict(self) -> str:
        """``whole``, ``damaged`` or ``unfinished``."""
        return "damaged" if self.damaged else "unfinished" if self.missing else "whole"

    @property
    def code(self) -> int:
        """The exit code of the verdict."""
        return 3 if self.damaged else 75 if self.missing else 0

    def line(self) -> str:
        """The verdict in one line."""
        if self.damaged:
            names = some(sorted(self.damaged))
            words = f"NOT whole: {len(self.damaged)} damaged ({names}); repair: {self.repair}"
        elif "summary.json" in self.missing:
            words = "unfinished: nothing is summed yet"
        elif self.missing:
            words = f"unfinished: {len(self.missing)} of {self.parts} are not computed yet"
        else:
            words = f"whole: {self.parts}, {human_bytes(sum(self.sizes))}, {', '.join(self.summed)}"
            words += " proven" if self.proven else " not proven"
        return one_line(f"{self.root}: {words}")

    def text(self) -> str:
        """The first findings, damage first, and the verdict."""
        first = [*self.damaged.items()][:20] + [*self.missing.items()][:3]
        lines = [f"{path}: {why.removeprefix(f'{self.root / path}: ')}" for path, why in first]
        lines.append(self.line())
        return "".join(f"{one_line(line)}\n" for line in lines)

    def json(self) -> str:
        """All of it, for programs."""
        own = {"verdict": self.verdict, "code": self.code, "line": self.line()}
        return json.dumps(asdict(self) | own, indent=1, default=str) + "\n"


def look(root: Path) -> Audit:
    """Audit a results folder; InputError if it has neither plan nor total, or may not be read."""
    results, audit = Results(root), Audit(root)
    if os.path.isfile(results.merging):
        with audit.noting(results.summary):
            total = receipts.read(results.summary, SumReceipt)
            folders = [for_bash(Path(str(source.get("folder")))) for source in total.sources]
            audit.repair = " ".join(["shardwise merge", for_bash(root), *folders])
            audit.parts, audit.proven = count(len(folders), "folder"), total.proven
            _look_at_sum(audit, total.files, total.labels)
        return audit
    try:
        plan = plan_file.load(results.plan)
        _ = plan.sources, plan.per_matrix
    except IntegrityError as error:
        audit.damaged["plan.json"] = f"the plan: {error}"
        own = results.plan_facts, results.plan, results.sources, results.weights, results.labels
        words = " ".join(map(for_bash, (*own, results.summary)))
        audit.repair = f"rm -f {words}, then start the run again"
        return audit
    _look_at_run(plan, audit)
    paths = {root / path for path in audit.damaged}
    if any(path.parent == root for path in paths):
        # Snakemake does not remake an intermediate file if the files made from it exist.
        paths |= {results.summary, results.ledger}
    if paths:
        audit.repair = f"{ledger.build_repair(plan, (), paths)}, then start the run again"
    return audit


def _look_at_sum(audit: Audit, files: Mapping[str, ArrayFile], labels: Sequence[Any]) -> None:
    results = Results(audit.root)
    audit.summed = [f"{name}.npy" for name in files]
    for name, facts in files.items():
        with audit.noting(results.statistic(name)):
            audit.sizes.append(receipts.check_elements(results.statistic(name), facts))
    if labels:
        with audit.noting(results.label_names):
            if small.read(results.label_names) != label_text(*zip(*labels, strict=True)):
                raise IntegrityError(f"{results.label_names} is missing, or not what was written")


def _look_at_run(plan: Plan, audit: Audit) -> None:
    results, store, rows = plan.results, Store(plan), list(plan.shards.values())
    audit.parts = count(len(rows), "shard")
    if summed := store.is_summed(()):
        with audit.noting(results.summary):
            audit.summed = ["summary.json"]
            summary = receipts.read(results.summary, SumReceipt, plan=plan.facts.digest)
            audit.proven = summary.end_to_end is not None
            labels = zip(plan.facts.labels, plan.facts.label_counts, strict=True)
            _look_at_sum(audit, summary.files, [*labels])
    if plan.synthetic_receipt and results.synthetic.exists():  # it may have been removed
        with audit.noting(results.synthetic):
            stack = receipts.read(plan.synthetic_receipt, StackReceipt)
            audit.sizes.append(receipts.check_elements(results.synthetic, stack.file))
    look, made, step = partial(_look_at_shard, plan, audit), [], max(_AT_ONCE, len(rows) // 100)
    with ThreadPoolExecutor(ledger.THREADS, "look") as pool:
        for at in range(0, len(rows), step):
            if at:
                log.info("%d of %d shards, %s read", at, len(rows), human_bytes(sum(audit.sizes)))
            made += filter(None, pool.map(look, rows[at : at + step]))
    if len(made) < len(rows):
        return
    with audit.noting(results.ledger):
        table, listed = ledger.format_table(made), summed or store.is_listed()
        if listed and small.read(results.ledger, len(table) + small.MOST_BYTES) != table:
            raise IntegrityError(f"{results.ledger} does not agree with the receipts")
    if not summed:
        audit.missing["summary.json"] = "nothing is summed yet under this plan"


def _look_at_shard(plan: Plan, audit: Audit, row: Shard) -> ProductReceipt | None:
    """Audit the product and the copy of a shard; the receipt of the product, if that is whole."""
    results, store, whole = plan.results, Store(plan), None
    with audit.noting(results.receipt(row.name)):
        own = store.receipt(row.shard)
        audit.sizes.append(receipts.check_elements(results.product(row.name), own.file))
        if own.proof is None:
            audit.proven = False
        whole = own
    with audit.noting(results.shard_receipt(row.input_name)), suppress(receipts.NoReceipt):
        own_copy = store.copy_receipt(row.shard)
        if (copy := results.shard(row.input_name)).exists():  # it may have been removed
            audit.sizes.append(receipts.check_elements(copy, own_copy.file))
    return whole
