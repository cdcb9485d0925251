"""The part of the sum that one rank adds up."""

import logging
from collections.abc import Callable
from itertools import chain, groupby, islice

import numpy as np

from shardwise.numerics import statistics
from shardwise.numerics.packed import Packing
from shardwise.plan import memory
from shardwise.plan.plan import Plan, Shard
from shardwise.reduce.layout import Layout, Run, joined
from shardwise.reduce.scan import Part

log = logging.getLogger(__name__)


def adds_planes(plan: Plan) -> bool:
    """Whether the shards' files are the planes of sums."""
    exact = memory.exact_sum(plan.problem, plan.settings.reproducible)
    return plan.settings.keep == "sum" and exact


def element_type(plan: Plan) -> str:
    """The dtype of the numbers in the shards' files."""
    if adds_planes(plan):
        return "uint16"
    problem = plan.problem
    return problem.sum_dtype if plan.settings.keep == "sum" else problem.product_dtype


def number_parts(dtype: str) -> int:
    """How many real numbers make one number."""
    return 2 if "complex" in dtype else 1


class StripeSum:
    """What one rank, or a team, has added of one stripe of the result."""

    def __init__(
        self, plan: Plan, shards: list[Shard], names: list[str], layout: Layout,
        packing_of: Callable[[int], Packing], stripe: int,
    ) -> None:  # fmt: skip
        self.stripe, self._shards, self._layout = stripe, shards, layout
        self._matrices = plan.problem.matrices
        self._planes, self._packing_of = adds_planes(plan), packing_of
        dtype = plan.problem.product_dtype if self._planes else element_type(plan)
        parts = number_parts(dtype) if self._planes else 1
        low, high = (number // parts for number in layout.bounds(stripe))
        self.low = low
        origin = np.zeros(0)
        if "std" in names:
            path = plan.results.product(shards[0].shard)
            origin = np.load(path, "r", allow_pickle=False).reshape(-1)[low:high].copy()
        self._states = statistics.accumulators(names, high - low, dtype, origin)
        self.digests = np.zeros((len(shards), 16), np.uint8)
        self.runs: list[Run] = []

    def add(self, part: Part) -> None:
        """Add the rows of a part."""
        if self._planes:
            self._add_packed(part)
        else:
            first = self._shards[part.batches[0].shard].start + part.batches[0].first
            for rows in part.rows:
                for state in self._states:
                    state.add(rows, first)
                first += rows.n
        for batch, digest in zip(part.batches, part.digests, strict=True):
            self.digests[batch.shard] ^= np.frombuffer(digest.to_bytes(16, "big"), np.uint8)
        self.runs = joined([*self.runs, *map(self._layout.units_of, part.batches)])

    def _add_packed(self, part: Part) -> None:
        """Add the sums of shards, those at once that follow each other and are packed alike."""
        (total,) = self._states
        starts = (rows.start + i * rows.stride for rows in part.rows for i in range(rows.n))
        flat, width = part.rows[0].flat, part.rows[0].width
        numbers = (batch.shard for batch in part.batches)
        for packing, alike in groupby(numbers, self._packing_of):
            shards = [self._shards[number] for number in alike]
            own = list(islice(starts, len(shards) * sum(packing.words)))
            terms = sum(shard.stop - shard.start for shard in shards)
            total.add_packed(flat, own, width, packing, terms)

    def dump(self) -> list[np.ndarray]:
        """All of it, for `merge`."""
        dumps = [dump() for dump, _ in self.ways()]
        counts = np.array([len(dump) for dump in dumps], np.int64)
        return [counts, *chain.from_iterable(dumps)]

    def merge(self, arrays: list[np.ndarray]) -> None:
        """Add what a record holds of the same stripe."""
        counts, *rest = arrays
        each = iter(rest)
        for (_, merge), count in zip(self.ways(), counts.tolist(), strict=True):
            merge(list(islice(each, count)))

    def ways(self) -> list[tuple[Callable, Callable]]:
        """How each part of it is dumped, and merged with that of another rank."""
        return [(self._dump_read, self._merge_read), *((s.dump, s.merge) for s in self._states)]

    def _dump_read(self) -> list[np.ndarray]:
        return [self.digests, np.array(self.runs, np.int64).reshape(-1, 2)]

    def _merge_read(self, arrays: list[np.ndarray]) -> None:
        digests, runs = arrays
        self.digests ^= digests
        self.runs = joined([*self.runs, *map(tuple, runs.tolist())])

    def results(self) -> dict[str, np.ndarray]:
        """The statistics of the stripe, by name, one number an element; nothing is added later."""
        found: dict[str, np.ndarray] = {}
        while self._states:  # each goes before the next one's numbers come: they take much memory
            found |= self._states.pop(0).results(self._matrices)
        return found
