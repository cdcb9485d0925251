"""What a results folder has of a plan: the names of its files say it, as each carries a key.

A product is done where it and its receipt exist under the names that the plan gives them. What
else lies in the folder is of another config, and harms nothing.
"""

import hashlib
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from shardwise.errors import IntegrityError
from shardwise.files import small
from shardwise.files.commit import commit
from shardwise.files.paths import place
from shardwise.plan.plan import Plan
from shardwise.records import failures


def unmark(marker: Path) -> set[str]:
    """Say that a file without a key in its name is of no plan, before it is replaced.

    The names of the files that plans have marked come back.
    """
    names = set[str]()
    with suppress(FileNotFoundError):
        for name in os.listdir(marker.parent):
            other = marker.parent / name
            with suppress(IntegrityError):
                names.update((small.read(other) or b"").decode(errors="replace").split())
            other.unlink(missing_ok=True)
    return names


def mark(marker: Path, names: Iterable[str] = ()) -> None:
    """Say, last of all, of which plan such files are."""
    marker.parent.mkdir(parents=True, exist_ok=True)
    with commit(marker) as file:
        file.write("".join(f"{name}\n" for name in names).encode())


class Store:
    """The results folder of a plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._results = plan, plan.results

    def missing(self) -> list[str]:
        """The shards, in the plan's order, that lack their product or its receipt.

        Each folder is listed once, and no file is opened.
        """
        rows = self._plan.shards.values()
        return _missing(self._results.products, ((row.shard, row.name) for row in rows))

    def missing_copies(self) -> list[str]:
        """The same of the copies of shards."""
        rows = self._plan.shards.values()
        return _missing(self._results.shards, ((row.shard, row.input_name) for row in rows))

    def is_whole(self, shard: str) -> bool:
        """Whether a shard has its product and receipt."""
        name = self._plan.shards[shard].name
        return self._results.product(name).exists() and self._results.receipt(name).exists()

    # The ledger and the sum have no key in their names: a marker says of which plan they are.

    def is_listed(self) -> bool:
        """Whether the ledger is of this plan."""
        return self._results.ledger.exists() and self._results.listed(self._plan.key).exists()

    def is_summed(self, statistics: Sequence[str]) -> bool:
        """Whether the sum, with these companions, is of this plan."""
        results = self._results
        files = [results.summary, *self._plan.result_files(statistics)]
        return results.summed(self._plan.key).exists() and all(path.exists() for path in files)

    def withdraw(self) -> None:
        """Say that this plan has neither here, before one of its products is made anew."""
        self._results.listed(self._plan.key).unlink(missing_ok=True)
        summed = self._results.summed(self._plan.key)
        with suppress(FileNotFoundError):  # what it names has to go with the next sum
            summed.replace(summed.with_name(f"{summed.name}-withdrawn"))
        unmark(self._results.work(self._plan.key))  # what earlier runs have left

    def work_name(self, missing: Sequence[str]) -> str:
        """The name of this run's work on some shards; no earlier run has left such a file."""
        text = "\n".join([failures.this_run(), self._plan.key, *missing])
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _missing(top: Path, names: Iterable[tuple[str, str]]) -> list[str]:
    """The shards, each with the name of its files, that lack one of the two in a folder."""
    lacking, listed, there = [], None, set[str]()
    for shard, name in names:
        folder, _, file = f"{top}/{place(name)}".rpartition("/")
        if folder != listed:  # of a million shards, those in a folder follow each other
            listed, there = folder, _names(folder)
        if not (f"{file}.npy" in there and f"{file}.json" in there):
            lacking.append(shard)
    return lacking


def _names(folder: str) -> set[str]:
    try:
        return set(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return set()


def describe(plan: Plan, shards: Sequence[str], why: str = "have no products yet") -> str:
    """How many shards are still to be computed, for the log; ``why`` is said of them."""
    if not shards:
        return "every shard has its product"
    return f"{len(shards)} of {len(plan.shards)} shards {why}"


def amounts(plan: Plan, shards: Sequence[str]) -> tuple[int, int]:
    """Bytes that computing some shards reads, of A and of B, and bytes that it writes."""
    problem, rows = plan.problem, [plan.shards[shard] for shard in shards]
    factors = len(rows) if problem.shared_right else sum(row.stop - row.start for row in rows)
    read = sum(row.bytes for row in rows) + factors * problem.right_bytes
    return read, sum(row.product_bytes for row in rows)
