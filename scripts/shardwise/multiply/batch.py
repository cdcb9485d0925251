"""The batches: their memory, the way of each through it, and what is reported for a shard.

An operation (operation.py) says what is done with the matrices, a sink (sinks.py) what becomes of
the products; the plan chooses both.
"""

from collections import deque
from concurrent.futures import Future
from typing import Any

import numpy as np

from shardwise.errors import InputError, TryAgain, WrongProduct
from shardwise.files.checksum import raw_bytes
from shardwise.multiply import operation as operations
from shardwise.multiply import sinks
from shardwise.multiply.lanes import Lane, Mark
from shardwise.multiply.operation import BatchReport
from shardwise.numerics import end_to_end, reference
from shardwise.plan import memory
from shardwise.plan.plan import Plan
from shardwise.records.timeline import Span
from shardwise.records.witness import ShardWitness
from shardwise.units import human_bytes


class Batches:
    """The memory of batches of so many `matrices` each, for shards of up to `count` matrices.

    That of the sum is for the shard ``run``; others may take some more, or less.

    Shards that follow each other share it: the first batches of one are under way while the last
    ones of the shard before are still being written.

    Attributes
    ----------
    under_way
        Of the last batches, whichever shard's: the mark of their work, and the future of what is
        done with their products. There are as many as buffers, once the first have been filled.

    Raises
    ------
    TryAgain
        Where the smallest batch does not fit the memory that is free.
    IntegrityError
        Where the device multiplies in a lower precision than was asked for (canary.py).
    """

    def __init__(self, lane: Lane, plan: Plan, run: range) -> None:
        self._lane, self._plan, self._problem = lane, plan, plan.problem
        self._strict = plan.settings.nonfinite == "error"
        self.count, self.under_way = len(run), deque[tuple[Mark, Future[None]]]()
        self.operation = operations.choose(lane, plan)
        self.sink = sinks.choose(lane.xp, plan)
        self._right: Any = None
        self._number = 0  # of the batch that is filled next
        self._allocate(run)

    def _allocate(self, run: range) -> None:
        """Take the memory of the batches: as large as is planned, or smaller while it is short."""
        cuda = self._lane.xp is not np
        for batches, matrices in memory.ladder(self._problem, len(run), cuda):
            try:
                self._take(batches, matrices, run)
            except self._lane.memory_errors:
                self._lefts = self._rights = self._outs = []
                self.sink.release()
                self._lane.release()
            else:
                return
        needed = human_bytes(_least_bytes(self._plan, run, cuda))
        raise TryAgain(
            f"a batch of {matrices} needs {needed}, but {self._lane.free()}; ask for a larger "
            "device, or wait until this one is free"
        )

    def _take(self, batches: int, matrices: int, run: range) -> None:
        problem, zeros = self._problem, self._lane.zeros
        self.matrices = matrices
        self._lefts = [zeros((matrices, *problem.left), problem.dtype) for _ in range(batches)]
        self._rights = []
        if problem.right and not problem.shared_right:
            self._rights = [zeros((matrices, *problem.right), problem.dtype) for _ in self._lefts]
        # Products that are still being written need a buffer of each batch under way.
        outs = 1 if self.sink.at_once else batches
        shape = (matrices, *problem.product_shape)
        self._outs = [zeros(shape, problem.product_dtype) for _ in range(outs)]
        with self._lane.work():
            self.sink.allocate(run)
            self.operation.allocate(matrices)
        if not problem.shared_right:  # else `share` does
            self._try_arithmetic()

    def _try_arithmetic(self) -> None:
        self.operation.try_arithmetic(*self._factors(0), self._outs)

    def share(self, right: np.ndarray) -> Span:
        """Take the one B ``(k, p)`` that serves all matrices; when it was on its way."""
        if self._right is None:
            self._right = self._lane.zeros(right.shape, right.dtype.name)
            self._try_arithmetic()
        if self.under_way:  # the shard before multiplies by it
            self._lane.reuse(self.under_way[-1][0])
        span = self._lane.upload([raw_bytes(right)], raw_bytes(self._right)).wait()
        if self._strict and not np.isfinite(right).all():
            raise self.operation.refusal("right", BatchReport(0, 1), 0)
        return span

    def _factors(self, number: int) -> tuple[Any, Any]:
        """The A's of the batch of a number, and its B's, the one that serves all, or None."""
        right = self._rights[number % len(self._rights)] if self._rights else self._right
        return self._lefts[number % len(self._lefts)], right

    def inputs(self, count: int) -> list[Any]:
        """Where the bytes of the factors of the next batch belong."""
        stacks = [stack for stack in (self._lefts, self._rights) if stack]
        return [raw_bytes(stack[self._number % len(stack)][:count]) for stack in stacks]

    @property
    def full(self) -> bool:
        """Whether the next batch needs the memory of one that is under way."""
        return len(self.under_way) == len(self._lefts)

    def work(self, first: int, count: int) -> tuple[BatchReport, Any]:
        """Multiply the batch that was filled on the work track; its report, and bytes to write."""
        report = BatchReport(first, count)
        out = self._outs[self._number % len(self._outs)]
        products = self.operation.run(report, *self._factors(self._number), out)
        self._number += 1
        return report, self.sink.take(products, first)


class ShardChecks:
    """Looks at the reports of one shard's batches, from matrix `start` on.

    Parameters
    ----------
    every
        The tally keeps the numbers of one in so many matrices; None for none.

    Attributes
    ----------
    tally
        The forms of all batches that were examined.
    """

    def __init__(
        self, plan: Plan, operation: operations.Operation, start: int, every: int | None
    ) -> None:
        self._problem, self._strict = plan.problem, plan.settings.nonfinite == "error"
        self.operation, self.tally = operation, reference.ShardForms(start, every)

    def examine(self, report: BatchReport) -> None:
        """Refuse what a batch's report says is wrong, and count what it says of the products.

        Raises
        ------
        InputError
            Where the input is not finite, or a product overflows.
        IntegrityError
            Where a product fails its proof.
        """
        finite = self._examine_moduli(report)
        if report.ratio is None:
            return
        wrong = ~(report.ratio <= 1.0) & finite  # what is not finite was allowed
        if wrong.any():
            i = int(wrong.argmax())
            real = self._problem.product_dtype != "int64"
            if real and report.product is None and not np.isfinite(report.ratio[i]):
                raise self.operation.overflow(report, i)
            raise WrongProduct(
                f"the product of matrix {report.first + i} is wrong: Freivalds' check is off by "
                f"{float(report.ratio[i]):.3g} times its tolerance; suspect the device and try "
                "another"
            )
        self.tally.add(report.first, report.forms)

    def _examine_moduli(self, report: BatchReport) -> Any:
        """Refuse what is not finite; where that is allowed, say which products are."""
        finite: Any = True
        for name in ("left", "right", "product"):
            largest = getattr(report, name)
            if largest is None:
                continue
            is_finite = np.isfinite(largest)
            if self._strict and not is_finite.all():
                i = int(is_finite.argmin())
                if name == "product":
                    raise self.operation.overflow(report, i)
                raise self.operation.refusal(name, report, i)
            finite = finite & is_finite
        return finite

    def witness(self) -> ShardWitness | str:
        """What the products of the shard come to on the device, or why nothing is known.

        Raises
        ------
        IntegrityError
            Where products and factors disagree by more than each single product may.
        """
        problem = self._problem
        if problem.result:
            return "a user's function has no factors to compare with"
        if not self.operation.proof:
            return "verify: false"
        total, rows = self.tally.total(), self.tally.rows
        tolerance = end_to_end.product_bound(problem, total, rows, self.operation.bound)
        if not np.isfinite([*total, tolerance]).all():
            return "a product, or what proves it, is not finite in double precision"
        return ShardWitness.of(total, tolerance)


def refuse_too_large(plan: Plan, cuda: bool, total: int | None) -> None:
    """Refuse shards of which not one call fits `total` bytes; None if nobody knows how many.

    Raises
    ------
    InputError
        With what is needed, and what there is.
    """
    largest = max(plan.shards.values(), key=lambda shard: (shard.device_memory, shard.memory))
    problem, needed = plan.problem, _least_bytes(plan, largest.run, cuda)
    if total is None or needed <= total:
        return
    parts = {"A": problem.matrix_bytes, "B": problem.right_bytes, "product": problem.product_bytes}
    words = ", ".join(f"{name} {human_bytes(nbytes)}" for name, nbytes in parts.items() if nbytes)
    sums = ", more shards, or keep: products" if plan.settings.keep == "sum" else ""
    other = ", or backend: numpy on a machine with more memory" if cuda else ""
    raise InputError(
        f"input: {problem.product} of {problem.left} {problem.dtype} needs {human_bytes(needed)} "
        f"of memory at once ({words}; the rest is for the sum, the proof and libraries), but "
        f"{'the device' if cuda else 'this machine'} has {human_bytes(total)} in all; use a larger "
        f"one{other}, narrower elements, or matrices cut into blocks{sums}"
    )


def _least_bytes(plan: Plan, run: range, cuda: bool) -> int:
    settings = plan.settings
    return memory.least_bytes(plan.problem, run, settings.keep, cuda, settings.precision)
