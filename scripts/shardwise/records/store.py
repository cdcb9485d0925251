"""The store: what a results folder holds of a plan, what is whole there, and what has failed.

A product is done if it and its receipt exist under the names that the plan gives them. Jobs parse
the Snakefile, and so import this: what takes NumPy is imported inside functions.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwise.errors import InputError, ShardwiseError, TryAgain
from shardwise.files import small
from shardwise.files.commit import commit
from shardwise.files.paths import SUMS, list_names, place
from shardwise.plan.plan import Plan, Shard
from shardwise.records import failures
from shardwise.records.failures import Failure

if TYPE_CHECKING:
    from shardwise.records.receipts import CopyReceipt, ProductReceipt, SumReceipt

WORKER = "multiply"  # the failure of a worker that could not begin is of no single shard

# A file of a shard, or the failure of a copy or of a stage.
_KEYED = re.compile(
    r"(?:[0-9]{3}/)?(?:[a-z]+-(?=.*\.json$))?((?:[0-9]+-|(?<=-))[0-9a-f]{12})\.(?:npy|json)"
)


def unmark(marker: Path) -> set[str]:
    """Remove all markers next to this one; return the names in them: the files are of no plan."""
    names = set[str]()
    for other in marker.parent.glob("[0-9a-f]" * len(marker.name)):  # a key: the rest is not ours
        with suppress(ShardwiseError):
            names.update((small.read(other) or b"").decode(errors="replace").split())
        other.unlink(missing_ok=True)
    return names


def mark(marker: Path, lines: Iterable[str] = ()) -> None:
    """Write, after the files themselves, the marker that says to which plan they belong."""
    with commit(marker) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())


class Store:
    """The results folder of a plan.

    A part of the run is named by a shard's id, by ``copy-`` and that id, or by a stage: followed by
    its key, that is the name of its failure.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.results = plan, plan.results

    def missing(self) -> list[str]:
        """The shards, in the plan's order, that lack their product or its receipt."""
        return self._lacking(self.results.products, attrgetter("name"))

    def missing_copies(self) -> list[str]:
        """The same for the copies of shards."""
        return self._lacking(self.results.shards, attrgetter("input_name"))

    def _lacking(self, top: Path, name_of: Callable[[Shard], str]) -> list[str]:
        lacking, listed, there = [], None, set[str]()
        for row in self.plan.shards.values():
            folder, _, file = f"{top}/{place(name_of(row))}".rpartition("/")
            if folder != listed:  # shards of one folder follow each other: list it once
                listed, there = folder, set()
                with suppress(FileNotFoundError, NotADirectoryError):
                    there = set(os.listdir(folder))
            if not (f"{file}.npy" in there and f"{file}.json" in there):
                lacking.append(row.shard)
        return lacking

    def is_whole(self, shard: str) -> bool:
        """Whether a shard has its product and receipt."""
        name = self.plan.shards[shard].name
        return self.results.product(name).exists() and self.results.receipt(name).exists()

    def others(self) -> Iterator[Path]:
        """Files of other configs or cuts, which `stages.clean` removes; nothing is opened."""
        plan, rows = self.plan, self.plan.shards.values()
        own = {plan.key, *(row.name for row in rows), *(row.input_name for row in rows)}
        for top in (self.results.products, self.results.shards, self.results.failed):
            for name in sorted(list_names(top)):
                if (match := _KEYED.fullmatch(name)) and match[1] not in own:
                    yield top / name

    def receipt(self, shard: str) -> "ProductReceipt":
        """The receipt of a shard whose product is whole, as far as header and size show."""
        from shardwise.records import receipts

        plan, row, nodes = self.plan, self.plan.shards[shard], self.plan.nodes_of(shard)
        shape = (len(nodes["nodes"] or row.run), *plan.problem.product_shape)
        facts = {"shape": shape, "dtype": plan.element_type, **nodes}
        path, kind = self.results.receipt(row.name), receipts.ProductReceipt
        receipt = receipts.read(path, kind, facts, shard=shard, key=row.key)
        receipts.check_file(self.results.product(row.name), receipt.file)
        return receipt

    def copy_receipt(self, shard: str) -> "CopyReceipt":
        """The receipt of the copy of a shard's matrices, without a look at the copy."""
        from shardwise.records import receipts

        problem, row = self.plan.problem, self.plan.shards[shard]
        facts = {"shape": (len(row.run), *problem.left), "dtype": problem.dtype}
        path, kind = self.results.shard_receipt(row.input_name), receipts.CopyReceipt
        return receipts.read(path, kind, facts, shard=shard, key=row.input_key)

    def publish(self, shard: str, receipt: Mapping[str, Any], written: os.stat_result) -> None:
        """Commit the receipt of a product, ``written``: the shard is done, and has not failed.

        TryAgain if another attempt has replaced the product meanwhile. If the bytes of that differ,
        it has no receipt, or gets its own.
        """
        from shardwise.records import receipts

        name = self.plan.shards[shard].name
        product, path = self.results.product(name), self.results.receipt(name)
        receipts.write(path, receipt)
        same = False
        with suppress(FileNotFoundError):
            same = os.path.samestat(product.stat(), written)
        if not (same or receipts.passes(receipts.check_elements, product, receipt["file"])):
            path.unlink(missing_ok=True)
            raise TryAgain(
                f"{product}: another attempt of this shard has meanwhile replaced it with "
                "different bytes; let that attempt finish, then try again"
            )
        self.forget(shard)
        with suppress(OSError):
            if failures.count_starts(starts := self.results.starts(name)) == 1:
                starts.unlink()  # it stays only if it shows that there were several

    def _name(self, part: str) -> str:
        copy, _, shard = part.rpartition("-")
        row = self.plan.shards.get(shard)
        return f"{part}-{self.plan.key if row is None else row.input_key if copy else row.key}"

    def fail(
        self, part: str, error: Exception, device: str | None = None, attempt: int = 1
    ) -> Failure:
        """Write why a part has failed; a suspect device is not used again in this run."""
        name = self._name(part)
        rule = "shard" if part[:5] == "copy-" else "multiply" if part in self.plan.shards else part
        log = self.results.log(rule, None if rule == part else name.removeprefix("copy-"))
        return failures.note(self.results, name, error, log, device, attempt)

    def forget(self, part: str) -> None:
        """Remove the failure of a part, if there is one."""
        with suppress(OSError):
            self.results.failure(self._name(part)).unlink()

    @contextmanager
    def attempt(self, part: str, device: Callable[[], str | None] | None = None) -> Iterator[None]:
        """Note a failure if the body raises, with the GPU that it took; else forget an earlier."""
        try:
            yield
        except Exception as error:
            tries = failures.count_starts(self.results.starts(self._name(part)))
            self.fail(part, error, device() if device else None, tries or 1)
            raise
        self.forget(part)

    def failure(self, part: str) -> Failure | None:
        """The failure of a part in this run, or None."""
        # Opened by its path, as a network disk lists new names late.
        why = failures.read(self.results.failure(self._name(part)))
        return why if why and why.run == failures.this_run() else None

    def failed(self, parts: Iterable[str]) -> dict[str, Failure]:
        """The failures of some of many parts in this run, in the order of the parts."""
        if not (there := list_names(self.results.failed)):
            return {}
        found = {p: self.failure(p) for p in parts if f"{place(self._name(p))}.json" in there}
        return {part: why for part, why in found.items() if why}

    # The ledger and the sum have no key in their names: a marker says to which plan they belong.

    def is_listed(self) -> bool:
        """Whether the ledger exists, and belongs to this plan."""
        return self.results.ledger.exists() and self.results.listed(self.plan.key).exists()

    def is_summed(self, statistics: Sequence[str]) -> bool:
        """Whether the sum and these other statistics exist, and belong to this plan."""
        results = self.results
        files = [results.summary, *self.plan.result_files(statistics)]
        return results.summed(self.plan.key).exists() and all(path.exists() for path in files)

    def finished(self, *names: str) -> "SumReceipt":
        """The receipt of the sum, whose files are whole as far as header and size show.

        InputError if the run has not finished, or lacks one of the results ``names``.
        """
        from shardwise.records import receipts

        if not self.is_summed(()):
            raise self.unfinished()
        path, plan = self.results.summary, self.plan.facts.digest
        summary = receipts.read(path, receipts.SumReceipt, plan=plan)
        for name, facts in summary.files.items():
            receipts.check_file(self.results.statistic(name), facts)
        if lacking := [name for name in names if name not in summary.files]:
            cure = "set labels" if lacking[0] == SUMS else "add it to reduce.statistics"
            cure += ", and start the run again"
            cure = "a run with labels has nothing else" if SUMS in summary.files else cure
            have = f"{self.results.root} has no {lacking[0]}, but {', '.join(summary.files)}"
            raise InputError(f"{have}; {cure}")
        return summary

    def unfinished(self) -> InputError:
        """The error for a run that lacks a file that it would have if it had finished."""
        return InputError(
            f"{self.results.root}: the run has not finished, or another config or input has run "
            "here since it was opened; start the run again, or open it again"
        )

    def withdraw(self) -> None:
        """Withdraw the markers of both, before one of the plan's products is made anew."""
        unmark(self.results.listed(self.plan.key))  # of any plan: it may list the same product
        self.results.summed(self.plan.key).unlink(missing_ok=True)
        unmark(self.results.work(self.plan.key))  # of jobs of earlier runs
