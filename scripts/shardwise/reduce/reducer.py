"""The reduce: every rank adds its part of all products, and each byte is read once.

The result does not depend on which rank adds what (tree.py, statistics.py). The same pass forms the
checksum of each shard's file, which is compared with its receipt before anything is published.
"""

import math
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, suppress
from functools import lru_cache, partial
from itertools import compress
from operator import add, or_
from pathlib import Path
from typing import Any

import numpy as np

from shardwise import host
from shardwise.errors import InputError, IntegrityError, ShardwiseError, log, some
from shardwise.files.commit import commit as commit_file
from shardwise.files.npy import DATA_OFFSET, read_header
from shardwise.files.paths import COVARIANCE, RESULTS, SUMS
from shardwise.mpi.together import agree, merge, mpi_version, on_root, xor
from shardwise.numerics import covariance, end_to_end, statistics
from shardwise.numerics.statistics import Statistic
from shardwise.pace import Pace
from shardwise.plan import plan as plan_file
from shardwise.plan import problem as plan_problem
from shardwise.plan.plan import Plan
from shardwise.plan.problem import ITEM_BYTES
from shardwise.records import ledger, receipts, store
from shardwise.records.locks import take_lock
from shardwise.records.receipts import SumReceipt
from shardwise.reduce.layout import Scan, Span
from shardwise.reduce.results import ResultFiles

_NUMBERS = 2**20  # that are read at a time when a file is read again


def run(comm: Any, path: Path, names: list[str]) -> Plan:
    """Compute statistics over all products and commit them, then ``summary.json``.

    Every rank of ``comm`` calls this. Raises on every rank IntegrityError if a shard is not what
    its receipt says, InputError if a result overflows or cannot be computed, TryAgain if a file
    cannot be read, or another reduce works on these results.
    """
    started = time.time()

    def load() -> Plan:
        plan = plan_file.load(path)
        weight = plan.per_matrix.total_weight
        plan_problem.check(plan.problem, names, plan.settings.keep, weight)
        return plan

    plan = agree(comm, load)
    busy = f"another reduce works on {plan.results.root}; let it finish"
    lock = on_root(comm, lambda: take_lock(plan.results.reducing, busy))
    with lock or nullcontext(), ExitStack() as stack:
        if comm.rank == 0:
            stack.enter_context(store.Store(plan).attempt("reduce"))
        reducer = Reducer(comm, plan, names)
        stack.callback(reducer.files.discard)
        reducer.read_all()
        reducer.publish(started)
    return plan


class Reducer:
    """One rank's part in a reduce; ``files`` are the result files of all ranks."""

    def __init__(self, comm: Any, plan: Plan, names: list[str]) -> None:
        self._comm, self._plan, self._names = comm, plan, names
        self._shards = list(plan.shards.values())
        self._kept = plan.settings.keep == "products"
        runs = [shard.run for shard in self._shards]
        rows = [len(run if self._kept else plan.per_matrix.keys(run)) for run in runs]
        numbers, item = math.prod(plan.problem.product_shape), ITEM_BYTES[plan.element_type]
        self._scan = Scan(rows, numbers, plan.element_type, self._path)
        # Of all shards on rank 0, none on the others.
        self._receipts = on_root(comm, lambda: ledger.checked_receipts(plan)) or []
        self.files = ResultFiles(plan.results, plan.problem, item, plan.problem.results(names))
        self._elements = math.prod(plan.problem.sum_shape)
        self._form = end_to_end.SumForm(plan.problem.product_shape, plan.problem.sum_dtype)
        self._pace: Pace  # of the rows of all stripes of this rank
        self._statistics = lru_cache(1)(  # a stripe reuses the memory of the one before
            lambda width: statistics.choose(names, width, plan.element_type, plan.per_matrix)
        )
        weight = plan.per_matrix.total_weight
        self._total_weight = plan.problem.matrices if weight is None else weight
        self._below: dict[int, np.ndarray] = {}  # the column sums in each stripe of this rank

    def _path(self, shard: int) -> Path:
        return self._plan.results.product(self._shards[shard].name)

    def read_all(self) -> None:
        """Read this rank's share; write its results, or merge its nodes with other ranks'."""
        comm, scan = self._comm, self._scan
        temporary = comm.bcast(on_root(comm, self.files.create))
        agree(comm, lambda: self.files.open(temporary))
        # Each rank takes some stripes alone; if there are fewer than ranks, all share each of them.
        groups = comm.size if scan.stripes >= comm.size else 1
        own = comm.rank % groups
        group, stripes = comm.Split(own), range(own, scan.stripes, groups)
        span = scan.share(group.rank, group.size)
        self._pace = Pace("reduce", len(stripes) * (span[1] - span[0]))
        agree(comm, lambda: [self._sum(group, stripe, span) for stripe in stripes])
        group.Free()
        agree(comm, self.files.close)
        if self._plan.problem.covariance:
            self._derive()

    def _sum(self, group: Any, stripe: int, span: Span) -> None:
        """Sum a stripe: each rank of a group adds some rows, and its rank 0 merges all nodes."""
        found = agree(group, partial(self._add, stripe, span))
        for one in found:
            merge(group, one)
            agree(group, one.check)
        on_root(group, partial(self._finish, stripe, found))

    def _add(self, stripe: int, span: Span) -> list[Statistic]:
        """The statistics of some rows of a stripe."""
        low, high = self._scan.bounds(stripe)
        found = self._statistics(high - low)
        for one in found:
            one.reset()
        with np.errstate(all="ignore"):  # an overflow is found and named at the end
            for shard, first, numbers in self._scan.read(span, stripe):
                if self._kept:
                    for one in found:
                        one.add(numbers, self._shards[shard].start + first)
                else:
                    keys = self._plan.per_matrix.keys(self._shards[shard].run)
                    for key, row in zip(keys[first : first + len(numbers)], numbers, strict=True):
                        found[0].put(key, row)
                if self._comm.rank == 0:  # the others are about as far
                    self._pace.add(len(numbers))
        return found

    def _finish(self, stripe: int, found: list[Statistic]) -> None:
        """Compute and write the results of a stripe to which all rows have been added."""
        low, _ = self._scan.bounds(stripe)
        results: dict[str, np.ndarray] = {}
        with np.errstate(all="ignore"):
            for one in found:
                results |= one.results(self._total_weight)
        wild = [name for name, array in results.items() if not np.isfinite(array).all()]
        if wild and self._plan.settings.nonfinite == "error":
            # Of a shard whose products are finite, the receipt nearly always has a witness.
            held = [own.shard for own in self._receipts if own.proof and not own.witness]
            shards = f" (see {some(f'shard {shard}' for shard in held)})" if held else ""
            raise InputError(
                f"the {wild[0]} is not finite: it overflows, or products{shards} hold NaN or Inf, "
                "computed under nonfinite: allow; scale or correct the input, or set nonfinite: "
                "allow"
            )
        for total in results.get(SUMS, ()):
            self._form.add(total, low)
        if "sum" in results:
            self._form.add(results["sum"], low)
            self._below[low] = results["sum"][max(0, self._elements - low) :].copy()
        shown = {name: array[..., : self._elements - low] for name, array in results.items()}
        if low < self._elements:
            self.files.write(shown, low)

    def _derive(self) -> None:
        """Under ``covariance: true``, write what follows from the sum, on rank 0."""
        below = self._comm.reduce(self._below, or_)

        def write() -> None:
            sums = np.concatenate([below[low] for low in sorted(below)])
            total = self.files.read("sum")
            found, rows = covariance.of_sum(self._plan, sums, total[:: len(sums) + 1])
            self.files.open({name: self.files.temporary[name] for name in COVARIANCE})
            self.files.write(rows, 0)
            for stripe in range(self._scan.stripes):
                low, high = self._scan.bounds(stripe)
                if low < self._elements:
                    self.files.write(found.elements(total[None, low:high].conj(), low), low)
            self.files.close()

        on_root(self._comm, write)

    def publish(self, started: float) -> None:
        """Compare all checksums and the sum, then commit the results and ``summary.json``."""
        comm = self._comm
        found, digests = xor(comm, self._scan.digests), xor(comm, self.files.digests)
        forms, nodes = comm.reduce(self._form.runs, add), comm.gather(host.node())

        def commit() -> None:
            said = (bytes.fromhex(receipt.file.checksum) for receipt in self._receipts)
            wrong = [row.tobytes() != own for row, own in zip(found, said, strict=True)]
            self._refuse(wrong, "checksums differ from their receipts")
            self._form.runs = forms
            self._commit(digests, Counter(nodes), self._prove(), started)

        on_root(comm, commit)

    def _refuse(self, wrong: Sequence[bool], what: str) -> None:
        """Refuse shards that are wrong, by an error with the command that repairs them."""
        if ids := [shard.shard for shard in compress(self._shards, wrong)]:
            raise IntegrityError(
                f"shard {some(ids)}: {what}; compute {'it' if len(ids) == 1 else 'them'} again: "
                f"{ledger.build_repair(self._plan, ids)}, then start the run again"
            )

    def _prove(self) -> dict[str, Any]:
        """Compare the sum with the shards' receipts; returns what the summary says about it.

        If they differ, all files are read again, to name the shards whose receipts they contradict.
        """
        problem, off = self._plan.problem, math.nan
        if not {"sum", "mean"}.isdisjoint(self._names):
            off = receipts.compare_sum(problem, self._receipts, self._form.value())
        if math.isnan(off):
            return {}
        if off <= 1:
            return {"end_to_end": {"shards": len(self._shards), "off": off}}
        log.error("reduce: the sum does not match the receipts; reading all files again")
        wrong = [
            not receipts.compare_sum(problem, [receipt], self._form_of(shard)) <= 1
            for shard, receipt in enumerate(self._receipts)
        ]
        self._refuse(wrong, "its file does not add up to what its receipt says")
        raise IntegrityError(
            "the sum does not match the receipts, but all files of shards do: a rank went wrong, "
            "in its memory or on the network; nothing was written. Start the run again"
        )

    def _form_of(self, shard: int) -> np.ndarray:
        """``lᵀ S r`` of the sum S of the products or nodes in a shard's file, read again."""
        plan, problem = self._plan, self._plan.problem
        total = end_to_end.SumForm(problem.product_shape, problem.sum_dtype)
        weights = plan.per_matrix.weights_of(self._shards[shard].run) if self._kept else None
        for place, row in enumerate(np.load(self._path(shard), "r", allow_pickle=False)):
            weight, numbers = 1 if weights is None else weights[place], row.reshape(-1)
            for low in range(0, numbers.size, _NUMBERS):
                total.add(np.array(numbers[low : low + _NUMBERS]) * weight, low)
        return total.value()

    def _commit(
        self, digests: np.ndarray, nodes: dict[str, int], proof: dict[str, Any], started: float
    ) -> None:
        plan, results, own = self._plan, self._plan.results, self._plan.result_files(self._names)
        # An earlier run's files are named by its marker, and by its summary if that is still whole.
        names = store.unmark(results.summed(plan.key))
        with suppress(ShardwiseError):
            said = receipts.read(results.summary, SumReceipt).files
            names |= {results.statistic(name).name for name in said}
            names |= {results.label_names.name} if SUMS in said else set()
        # First of all, as nothing names these files any more, should this reduce end now. If only
        # the statistics have changed, Snakemake has removed marker and summary before.
        for path in {results.label_names, *map(results.statistic, RESULTS)}.difference(own):
            if path.name in names or _is_ours(path):  # of another plan, or no longer asked for
                path.unlink(missing_ok=True)
        files, covariant = self.files.publish(digests), plan.problem.covariance
        if plan.problem.labels:
            with commit_file(results.label_names) as file:
                file.write(plan_file.label_text(plan.facts.labels, plan.facts.label_counts))
        summary = {
            "matrices": plan.problem.matrices,
            "shards": len(self._shards),
            "product": plan.problem.product,
            "keep": plan.settings.keep,
            **({"rows": plan.problem.matrices * plan.problem.left[0]} if covariant else {}),
            "proven": plan.settings.verify and plan.problem.result is None,
            **proof,
            "notes": plan.facts.notes,
            "plan": plan.facts.digest,
            "config": plan.facts.config_digest,
            "backend": self._receipts[0].backend,
            "ranks": self._comm.size,
            "nodes": nodes,
            "files": files,
            **receipts.describe_origin("reduce", started, {"mpi": mpi_version()}),
        }
        receipts.write(results.summary, summary)
        store.mark(results.summed(plan.key), [path.name for path in own])


def _is_ours(path: Path) -> bool:
    """Whether an array has the long header of our files; NumPy writes a shorter one."""
    with suppress(OSError, ShardwiseError):
        return read_header(path).offset == DATA_OFFSET
    return False
