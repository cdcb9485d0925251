"""What is done with a batch: check the input, multiply, prove, and add where the sum is kept."""

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from shardwise.errors import BadMatrix, InputError, TryAgain, WrongProduct
from shardwise.files.checksum import raw_bytes
from shardwise.numerics import canary, end_to_end, freivalds, reference, tolerances
from shardwise.numerics.binned import BinnedSum, plane_shape
from shardwise.numerics.gemm import kernel
from shardwise.plan import memory, user_function
from shardwise.plan.plan import Plan
from shardwise.plan.problem import Problem
from shardwise.records import account
from shardwise.records.timeline import Span
from shardwise.units import human_bytes

_INT64_MAX = 2**63 - 1
_CORRECT = "correct it, or set nonfinite: allow"


@dataclass
class Report:
    """What is to be looked at once a batch is done: one number a matrix each, or None.

    Attributes
    ----------
    first, count
        The matrices, by their index in the whole stack.
    left, right, product
        Largest moduli; infinite or NaN where an element is.
    ratio
        How far products are from those of their factors, in units of the tolerance. One number
        where the products were added up before.
    forms
        What `reference.Tally` adds up; a row for each ratio.
    """

    first: int
    count: int
    left: Any = None
    right: Any = None
    product: Any = None
    ratio: Any = None
    forms: Any = None

    def fetched(self, lane: Any) -> "Report":
        """The same in host memory."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return Report(**{k: lane.fetch(v) if hasattr(v, "shape") else v for k, v in found.items()})


class Worker:
    """The work on the batches of one shard, and the memory they lie in.

    Parameters
    ----------
    lane
        Where the batches live.
    start, count
        The first of the shard's matrices, and their number.
    every
        Of which one in so many matrices the tally keeps the numbers, too; None for none.

    Attributes
    ----------
    matrices
        Matrices of a batch.
    compute
        Name of the arithmetic that products are accumulated in.
    proof
        What the receipt says of the proof; None where there is none.
    tally
        The forms of all batches that were examined.

    Raises
    ------
    TryAgain
        Where the smallest batch does not fit the memory that is free.
    IntegrityError
        Where the device multiplies in a lower precision than was asked for (canary.py).
    """

    def __init__(
        self, lane: Any, plan: Plan, start: int, count: int, every: int | None = None
    ) -> None:
        self._lane, self._plan, self._problem = lane, plan, plan.problem
        problem, settings = plan.problem, plan.settings
        self._sums = settings.keep == "sum"
        self._exact = memory.exact_sum(problem, settings.reproducible)
        self._in_gemm = in_gemm(plan)
        provable = settings.verify and problem.result is None
        self._seed = int.from_bytes(os.urandom(6))
        self.proof = None
        if provable:
            self.proof = {"method": "freivalds", "vectors": tolerances.VECTORS, "seed": self._seed}
        self._function = self._kernel = self._checker = None
        self.tally = reference.Tally(start, every)
        if problem.result:
            self._function = user_function.load(problem.product, plan.facts.function)
            self.compute = problem.product_dtype
        else:
            self._kernel = kernel(lane.xp, problem, settings.precision)
            self.compute = self._kernel.compute
        self._right = None
        self._allocate(count)

    # The file that the shard becomes.

    @property
    def dtype(self) -> str:
        """Element type of the shard's file."""
        if not self._sums:
            return self._problem.product_dtype
        return "int64" if self._exact else self._problem.sum_dtype

    def shape(self, count: int) -> tuple[int, ...]:
        """Shape of the file of a shard of ``count`` matrices."""
        shape = self._problem.product_shape
        if not self._sums:
            return (count, *shape)
        return plane_shape(shape, self._problem.product_dtype) if self._exact else shape

    # Memory.

    def _allocate(self, count: int) -> None:
        """Take the memory of the batches: as large as is planned, or smaller while it is short."""
        cuda = self._lane.xp is not np
        for batches, matrices in memory.ladder(self._problem, count, cuda):
            try:
                self._take(batches, matrices)
            except self._lane.memory_errors:
                self._lefts = self._rights = self._outs = self._total = None
                self._lane.release()
            else:
                return
        needed = human_bytes(_least_bytes(self._plan, cuda))
        raise TryAgain(
            f"a batch of {matrices} needs {needed}, but {self._lane.free()}; ask for a larger "
            "device, or wait until this one is free"
        )

    def _take(self, batches: int, matrices: int) -> None:
        problem, zeros = self._problem, self._lane.zeros
        self.matrices = matrices
        self._lefts = [zeros((matrices, *problem.left), problem.dtype) for _ in range(batches)]
        self._rights = [None]
        if problem.right and not problem.shared_right:
            self._rights = [zeros((matrices, *problem.right), problem.dtype) for _ in self._lefts]
        # Sums take the products at once, so the next batch may overwrite them.
        outs = 0 if self._in_gemm else 1 if self._sums else batches
        shape = (matrices, *problem.product_shape)
        self._outs = [zeros(shape, problem.product_dtype) for _ in range(outs)]
        with self._lane.work():
            self._prepare()
        if not problem.shared_right:  # else `share` does
            self._try_arithmetic()

    def _prepare(self) -> None:
        """The checker and the sum, which hold memory too."""
        xp, problem = self._lane.xp, self._problem
        self._total = None
        if self._sums and not self._exact:
            self._total = xp.zeros(problem.product_shape, problem.sum_dtype)
        elif self._sums:
            self._total = BinnedSum(xp, problem.product_shape, problem.product_dtype)
        if self._kernel:
            self._checker = freivalds.Checker(
                xp, problem.product, problem.left, problem.right, problem.dtype,
                self.compute, self._seed, memory.proof_matrices(problem, self.matrices),
                self.matrices if self._in_gemm else 0,
            )  # fmt: skip

    def share(self, right: np.ndarray) -> Span:
        """Take the one B ``(k, p)`` that serves all matrices; when it was on its way."""
        self._right = self._lane.zeros(right.shape, right.dtype.name)
        self._try_arithmetic()
        span = self._lane.upload([raw_bytes(right)], raw_bytes(self._right)).wait()
        if self._plan.settings.nonfinite == "error" and not np.isfinite(right).all():
            raise self._refusal("right", Report(0, 1), 0)
        return span

    def _try_arithmetic(self) -> None:
        """Multiply what shows the precision, where nothing else lies yet; NumPy's is known."""
        problem = self._problem
        if not self.proof or self._lane.xp is np or "int" in problem.dtype:
            return
        with self._lane.work():
            canary.check(*self._trial(), self.compute, self._in_gemm)

    def _trial(self) -> tuple[Callable[[], Any], list[Any]]:
        """One call of the kernel on memory of the batches, and the factors that it takes."""
        left, right = self._lefts[0], self._rights[0]
        right = self._right if right is None else right
        factors = [x for x in (left, right) if x is not None]
        if self._in_gemm:
            return lambda: self._kernel.accumulate(left, right), factors
        count, out = min(len(left), memory.call_matrices(self._problem)), self._outs[0]

        def multiply() -> Any:
            self._kernel.multiply(left, right, out, count)
            return out[:count]

        return multiply, [x[:count] if x.ndim == 3 else x for x in factors]

    def inputs(self, number: int, count: int) -> list[Any]:
        """Where the bytes of the factors of a batch belong."""
        stacks = (self._lefts, self._rights)
        taken = [stack[number % len(stack)] for stack in stacks]
        return [raw_bytes(block[:count]) for block in taken if block is not None]

    @property
    def flop(self) -> int:
        """Floating-point operations of a product; 0 of a user's function, as nobody counts them."""
        return 0 if self._problem.result else self._problem.flop

    @property
    def batches(self) -> int:
        """Batches that are under way at once."""
        return len(self._lefts)

    # Work.

    def work(self, number: int, first: int, count: int) -> tuple[Report, Any]:
        """Multiply the batch of a number, on the work track.

        Returns
        -------
        report
            What to look at when the work is done.
        products
            The bytes to write, or None where they were added up.
        """
        left = self._lefts[number % len(self._lefts)]
        right = self._rights[number % len(self._rights)]
        right = self._right if right is None else right
        report = Report(first, count)
        if self._in_gemm:
            self._add_in_gemm(report, left, right)
            return report, None
        out = self._outs[number % len(self._outs)]
        if self._function:
            self._apply(report, left[:count], out[:count])
        else:
            self._multiply(report, left, right, out)
        if self._sums:
            self._add(out[:count])
            return report, None
        return report, raw_bytes(out[:count])

    def _add(self, products: Any) -> None:
        if self._exact:
            self._total.add(products)
            return
        for product in products:
            self._total += product

    def result(self) -> Any:
        """The bytes of the sum; None where the products themselves are kept."""
        if not self._sums:
            return None
        return raw_bytes(self._total.planes() if self._exact else self._total)

    def _multiply(self, report: Report, left: Any, right: Any, out: Any) -> None:
        count, product = report.count, out[: report.count]
        block = left[:count]
        other = right[:count] if right is not None and right.ndim == 3 else right
        if block.dtype.kind in "iu":
            if self.compute == "int64":
                _check_integers(self._lane.xp, self._problem, block, other, report.first)
        else:
            report.left = self._checker.largest(block)
            if right is not None and right.ndim == 3:
                report.right = self._checker.largest(other)
        self._kernel.multiply(left, right, out, count)
        if self.proof:
            report.ratio = self._checker.check(_signed(block), _signed(other), product)
            report.forms = self._checker.forms
        strict = self._plan.settings.nonfinite == "error"
        # A finite ratio says that the product is finite as well: one pass less.
        if product.dtype.kind != "i" and not (self.proof and strict):
            report.product = self._checker.largest(product)

    def _apply(self, report: Report, block: Any, out: Any) -> None:
        """What a user's function makes of a batch."""
        xp, strict = self._lane.xp, self._plan.settings.nonfinite == "error"
        if strict and block.dtype.kind != "i":
            # Before the call: what a function makes of NaN is nobody's fault but the input's.
            self.examine(Report(report.first, report.count, left=_largest(xp, block)), xp)
        out[...] = user_function.call(self._function, xp, block, report.first, self._problem)
        if out.dtype.kind != "i":
            report.product = _largest(xp, out)

    def _add_in_gemm(self, report: Report, left: Any, right: Any) -> None:
        """Add the products of a batch inside the GEMM, and the batches in double precision."""
        block = left[: report.count]
        other = right[: report.count] if right is not None and right.ndim == 3 else right
        total = self._kernel.accumulate(block, other)
        report.left = self._checker.largest(block)
        if other is not None and other.ndim == 3:
            report.right = self._checker.largest(other)
        report.product = _largest(self._lane.xp, total)
        if self.proof:
            report.ratio = self._checker.check(block, other, total)
            report.forms = self._checker.forms
        self._total += total[0]

    # What came out.

    def examine(self, report: Report, xp: Any = np) -> None:
        """Refuse what a batch's report says is wrong, and count what it says of the products.

        Raises
        ------
        InputError
            Where the input is not finite, or a product overflows.
        IntegrityError
            Where a product fails its proof.
        """
        finite: Any = True
        for name in ("left", "right", "product"):
            largest = getattr(report, name)
            if largest is None:
                continue
            own = xp.isfinite(largest)
            if self._plan.settings.nonfinite == "error" and not own.all():
                raise self._refusal(name, report, int(own.argmin()))
            # The sum of a whole batch has one ratio, of which one bad matrix proves nothing.
            alone = report.ratio is not None and len(own) == len(report.ratio)
            finite = finite & (own if alone else own.all())
        if report.ratio is None:
            return
        wrong = ~(report.ratio <= 1.0) & finite  # what is not finite was allowed
        if wrong.any():
            i = int(wrong.argmax())
            real = self._problem.product_dtype != "int64"
            if real and report.product is None and not np.isfinite(report.ratio[i]):
                raise self._refusal("product", report, i)
            raise WrongProduct(
                f"{self._product(report, i)} is wrong: Freivalds' check is off by "
                f"{float(report.ratio[i]):.3g} times its tolerance; suspect the device and try "
                "another"
            )
        self.tally.add(report.first, report.forms)

    def witness(self) -> account.Account | str:
        """What the products of the shard come to on the device, or why nothing is known.

        Raises
        ------
        IntegrityError
            Where products and factors disagree by more than each single product may.
        """
        problem = self._problem
        if problem.result:
            return "a user's function has no factors to compare with"
        if not self.proof:
            return "verify: false"
        total, rows, bound = self.tally.total(), self.tally.rows, self._checker.bound
        tolerance = end_to_end.product_bound(problem, total, rows, bound)
        if not np.isfinite([*total, tolerance]).all():
            return "a product, or what proves it, is not finite in double precision"
        return account.Account.of(total, tolerance)

    def _product(self, report: Report, i: int) -> str:
        """A product by name, or the sum of all of a batch."""
        if self._in_gemm:
            return f"the sum of the products {report.first} to {report.first + report.count - 1}"
        return f"the product of matrix {report.first + i}"

    def _refusal(self, name: str, report: Report, i: int) -> BadMatrix:
        matrix = report.first + i
        if name != "product":
            key, which = "input" if name == "left" else "right", f"matrix {matrix}"
            if key == "right" and self._problem.shared_right:
                matrix, which = 0, "the matrix"
            return BadMatrix(f"{key}: {which} holds NaN or Inf", _CORRECT, key, matrix)
        if self._function:
            what = f"product: {self._function.spec} made NaN or Inf of matrix {matrix}"
            return BadMatrix(f"{what}, which is finite", _CORRECT, "product", matrix)
        dtype = "float32" if self._in_gemm and self.compute != "float64" else self._problem.dtype
        what = f"{self._product(report, i)} overflows {dtype}, although its factors are finite"
        cure = "save the input as float64 (or scale it), or set nonfinite: allow"
        own = (report.first, report.count) if self._in_gemm else (matrix, 1)
        return BadMatrix(what, cure, "product", *own)


def in_gemm(plan: Plan) -> bool:
    """Whether the products of a batch are added up inside the matrix product."""
    problem, settings = plan.problem, plan.settings
    exact = memory.exact_sum(problem, settings.reproducible)
    return settings.keep == "sum" and not exact and memory.sums_in_gemm(problem)


def refuse_too_large(plan: Plan, cuda: bool, total: int | None) -> None:
    """Refuse matrices of which not one can be multiplied in the memory that there is in all.

    Parameters
    ----------
    cuda
        Whether a GPU computes.
    total
        Bytes of the device, or of this machine; None where nobody knows.

    Raises
    ------
    InputError
        With what is needed, and what there is.
    """
    problem, needed = plan.problem, _least_bytes(plan, cuda)
    if total is None or needed <= total:
        return
    parts = {"A": problem.matrix_bytes, "B": problem.right_bytes, "product": problem.product_bytes}
    words = ", ".join(f"{name} {human_bytes(nbytes)}" for name, nbytes in parts.items() if nbytes)
    sums = ", or set keep: products" if plan.settings.keep == "sum" else ""
    other = ", or backend: numpy on a machine with more memory" if cuda else ""
    raise InputError(
        f"input: {problem.product} of {problem.left} {problem.dtype} needs {human_bytes(needed)} "
        f"of memory at once ({words}; the rest is for the sum, the proof and libraries), but "
        f"{'the device' if cuda else 'this machine'} has {human_bytes(total)} in all; use a larger "
        f"one{other}, narrower elements, or matrices cut into blocks{sums}"
    )


def _least_bytes(plan: Plan, cuda: bool) -> int:
    keep = plan.settings.keep
    exact = memory.exact_sum(plan.problem, plan.settings.reproducible)
    return memory.least_bytes(plan.problem, keep, cuda, exact)


def _signed(block: Any) -> Any:
    """Integers whose arithmetic is that of int64; 64 bits without a sign hold no larger ones."""
    return block.view("int64") if block is not None and block.dtype == "uint64" else block


def _largest(xp: Any, stack: Any) -> Any:
    """The largest modulus of each matrix, NaN where it holds one; not for integers."""
    if stack.dtype.kind == "c":  # as Checker.largest does: their sum may overflow
        moduli = xp.maximum(xp.abs(stack.real), xp.abs(stack.imag))
    else:
        moduli = xp.abs(stack)
    return moduli.reshape(len(stack), -1).max(axis=1)


def _check_integers(xp: Any, problem: Problem, left: Any, right: Any, first: int) -> None:
    """Refuse integers whose products might not fit int64."""
    inner = problem.factor_shapes[0][1]
    sizes_of = [_moduli(xp, block) for block in (left, right) if block is not None]
    for i, own in enumerate(sizes_of[0]):
        other = sizes_of[-1][i if len(sizes_of[-1]) > 1 else 0]
        check_int64(inner, own, other, first + i)


def check_int64(inner: int, own: int, other: int, matrix: int) -> None:
    """Refuse a product that might not fit int64, from the largest moduli of its factors."""
    if max(own, other) > _INT64_MAX or inner * own * other > _INT64_MAX:
        what = f"the product of matrix {matrix} may not fit int64 (its largest element is "
        what += f"{max(own, other)})"
        raise BadMatrix(what, "save the input as float64", "product", matrix)


def _moduli(xp: Any, block: Any) -> list[int]:
    """The largest modulus of each matrix, as Python integers, which do not overflow."""
    flat = block.reshape(block.shape[0] if block.ndim == 3 else 1, -1)
    tops, bottoms = flat.max(axis=1).tolist(), flat.min(axis=1).tolist()
    return [max(top, -bottom) for top, bottom in zip(tops, bottoms, strict=True)]
