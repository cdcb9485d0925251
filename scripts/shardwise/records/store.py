"""Which files of a plan a results folder holds: their names tell, as each carries a key.

A product is done if it and its receipt exist under the names that the plan gives them. Other files
in the folder belong to other configs, and do no harm.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path

from shardwise.errors import ShardwiseError
from shardwise.files import small
from shardwise.files.commit import commit
from shardwise.files.paths import place
from shardwise.plan.plan import Plan, Shard, key_of
from shardwise.records import failures


def unmark(marker: Path) -> set[str]:
    """Remove all markers of a file without a key in its name, before the file is replaced.

    From then on the file belongs to no plan. Returns the file names that the markers list.
    """
    names = set[str]()
    with suppress(FileNotFoundError):
        for name in os.listdir(marker.parent):
            other = marker.parent / name
            with suppress(ShardwiseError):
                names.update((small.read(other) or b"").decode(errors="replace").split())
            other.unlink(missing_ok=True)
    return names


def mark(marker: Path, names: Iterable[str] = ()) -> None:
    """Write, after the files themselves, the marker that says to which plan they belong."""
    marker.parent.mkdir(parents=True, exist_ok=True)
    with commit(marker) as file:
        file.write("".join(f"{name}\n" for name in names).encode())


class Store:
    """The results folder of a plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._results = plan, plan.results

    def missing(self) -> list[str]:
        """The shards, in the plan's order, that lack their product or its receipt."""
        return self._lacking(self._results.products, attrgetter("name"))

    def missing_copies(self) -> list[str]:
        """The same for the copies of shards."""
        return self._lacking(self._results.shards, attrgetter("input_name"))

    def _lacking(self, top: Path, name_of: Callable[[Shard], str]) -> list[str]:
        lacking, listed, there = [], None, set[str]()
        for row in self._plan.shards.values():
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
        name = self._plan.shards[shard].name
        return self._results.product(name).exists() and self._results.receipt(name).exists()

    # The ledger and the sum have no key in their names: a marker says to which plan they belong.

    def is_listed(self) -> bool:
        """Whether the ledger exists, and belongs to this plan."""
        return self._results.ledger.exists() and self._results.listed(self._plan.key).exists()

    def is_summed(self, statistics: Sequence[str]) -> bool:
        """Whether the sum and these other statistics exist, and belong to this plan."""
        results = self._results
        files = [results.summary, *self._plan.result_files(statistics)]
        return results.summed(self._plan.key).exists() and all(path.exists() for path in files)

    def withdraw(self) -> None:
        """Withdraw the markers of both, before one of the plan's products is made anew."""
        self._results.listed(self._plan.key).unlink(missing_ok=True)
        self._results.summed(self._plan.key).unlink(missing_ok=True)
        unmark(self._results.work(self._plan.key))  # of jobs of earlier runs

    def work_name(self, missing: Sequence[str]) -> str:
        """The name of the file that this run's job for some shards leaves; no other run has it."""
        text = "\n".join([failures.this_run(), self._plan.key, *missing])
        return key_of(text.encode())


def describe(plan: Plan, shards: Sequence[str]) -> str:
    """How many shards are still to be computed, for the log."""
    if not shards:
        return "every shard has its product"
    return f"{len(shards)} of {len(plan.shards)} shards have no products yet"


def amounts(plan: Plan, shards: Sequence[str]) -> tuple[int, int]:
    """Bytes that computing some shards reads, of A and of B, and bytes that it writes."""
    problem, rows = plan.problem, [plan.shards[shard] for shard in shards]
    factors = len(rows) if problem.shared_right else sum(len(row.run) for row in rows)
    read = sum(row.bytes for row in rows) + factors * problem.right_bytes
    return read, sum(row.product_bytes for row in rows)
