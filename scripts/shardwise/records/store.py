"""What a results folder holds of a plan, what the rest would take, and what other configs left.

A product is done if it and its receipt exist under the names that the plan gives them.
"""

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

from shardwise.errors import ShardwiseError
from shardwise.files import small
from shardwise.files.commit import commit
from shardwise.files.paths import list_names, place, stamp
from shardwise.plan import plan_file
from shardwise.plan.plan_file import Plan, Shard, key_of
from shardwise.plan.problem import ITEM_BYTES, statistic_dtype
from shardwise.records import failures
from shardwise.units import human_bytes

_MOST_SHARDS = 100_000
# A file of a shard, or the failure of a copy or of a stage.
_KEYED = re.compile(
    r"(?:[0-9]{3}/)?(?:[a-z]+-(?=.*\.json$))?((?:[0-9]+-|(?<=-))[0-9a-f]{12})\.(?:npy|json)"
)


def unmark(marker: Path) -> set[str]:
    """Remove all markers next to this one; return the names in them: the files are of no plan."""
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


def amounts(plan: Plan, shards: Sequence[str]) -> tuple[int, int]:
    """Bytes that computing some shards reads, of A and of B, and bytes that it writes."""
    problem, rows = plan.problem, [plan.shards[shard] for shard in shards]
    factors = len(rows) if problem.shared_right else sum(len(row.run) for row in rows)
    read = sum(row.bytes for row in rows) + factors * problem.right_bytes
    return read, sum(row.product_bytes for row in rows)


def quote(plan: Plan, reduce: Mapping[str, Any], shards: list[str]) -> str:
    """The quote of a run that computes some shards; ``reduce`` is that section of the config."""
    problem, rows, stack = plan.problem, plan.shards.values(), plan.synthetic_receipt
    lacking = set(Store(plan).missing_copies()) if plan.settings.materialize else set()
    copied = sum(plan.shards[shard].bytes for shard in shards if shard in lacking)
    factors, products = amounts(plan, shards)
    results = 0
    for name in problem.results(reduce["statistics"]):
        item = ITEM_BYTES[statistic_dtype(name, problem.product_dtype)]
        results += math.prod(problem.statistic_shape(name)) * item
    new = plan.written["input"] if stack and not stack.exists() else 0
    read = human_bytes(copied + factors + plan.written["products"])
    written = human_bytes(new + copied + products + results)
    memory = human_bytes(max(row.memory for row in rows))
    if device := max(row.device_memory for row in rows):
        memory += f", and {human_bytes(device)} of a GPU"
    return f"a run reads {read} and writes {written}; memory per task: {memory}"


def find_others(plan: Plan) -> Iterator[Path]:
    """Files of other configs, but for the marker of a sum; nothing is opened."""
    results, rows = plan.results, plan.shards.values()
    own = {plan.key, *(row.name for row in rows), *(row.input_name for row in rows)}
    for top in (results.products, results.shards, results.failed):
        for name in sorted(list_names(top)):
            if (match := _KEYED.fullmatch(name)) and match[1] not in own:
                yield top / name


def replaced(plan: Plan) -> str:
    """What to say before a run replaces the finished results of another config."""
    with suppress(ShardwiseError):  # there is no plan, or none that can be used
        there = plan_file.load_facts(plan.results.plan)
        if list_names(plan.results.done) and there.config_digest != plan.facts.config_digest:
            return (
                f"{plan.results.root} holds the finished results of another config. Their sum and "
                "page will be replaced, their products stay; to keep all, set results to another "
                "folder"
            )
    return ""


def advice(plan: Plan) -> str:
    """What to say of other configs if their files take over a tenth of the plan's own bytes."""
    if len(plan.shards) > _MOST_SHARDS:  # whose folders take seconds to list
        return ""
    copied, rows = plan.settings.materialize, plan.shards.values()
    own = sum(row.product_bytes + row.bytes * copied for row in rows)
    sizes = [found[1] for path in find_others(plan) if (found := stamp(path))]
    words = f"{len(sizes)} files of other configs or inputs take {human_bytes(sum(sizes))}"
    return f"{words}; shardwise clean lists them" if sum(sizes) > own / 10 else ""
