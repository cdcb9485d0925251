"""What is done with a batch: its matrices are multiplied and proven, or given to a function.

In the batch an operation leaves what has to be checked once its queued work is done.
"""

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwise.errors import BadMatrix, DeviceFailed
from shardwise.multiply.cuda import Cuda
from shardwise.multiply.host import Host
from shardwise.numerics import end_to_end, freivalds, gemm
from shardwise.numerics.tolerances import VECTORS
from shardwise.numerics.tree import reals
from shardwise.numerics.xxh3 import Fragment
from shardwise.plan import user_function
from shardwise.plan.plan import Plan
from shardwise.plan.problem import Problem
from shardwise.processes import threads
from shardwise.records import receipts
from shardwise.records.receipts import Witness

if TYPE_CHECKING:
    from shardwise.multiply.job import ShardJob

Machine = Host | Cuda

_LONG_ROW = 256  # numbers


@dataclass(eq=False)
class Batch:
    """Matrices in a slot of the ring, and what has to be checked once the work on them is done.

    Of the checks, those that do not apply are None.
    """

    job: "ShardJob"
    slot: int
    first: int  # matrix, by its index in the whole stack
    count: int
    place: int  # of the first matrix in the shard
    reads: list[Any] = field(default_factory=list)
    # In host memory: the weights, and the places of those that are 0.
    weights: np.ndarray | None = None
    left_out: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    fragments: list[Fragment] = field(default_factory=list)
    mark: Callable[[], None] = lambda: None  # waits until the queued work is done
    written: Any = None  # bytes of the products, if they are kept
    writes: list[Any] = field(default_factory=list)  # of these products
    product: Any = None  # the largest modulus of each; infinite or NaN if an element is
    # How far each product is from its factors' own, in units of the tolerance.
    ratio: Any = None
    worst: Any = None  # the largest ratio
    total: Any = None  # the sum of the forms of all products, see `freivalds.Checker`


class Operation:
    """What is done with all batches of a session, and what is looked at afterwards.

    A subclass sets ``compute``, the arithmetic that products are accumulated in, and has ``run``.
    """

    compute: str
    proof: dict[str, Any] | None = None  # for the receipt
    bound = (0.0, 0.0)

    def __init__(self, machine: Machine, plan: Plan, matrices: int) -> None:
        self._xp, self._machine, self._problem = machine.xp, machine, plan.problem
        self._strict = plan.settings.nonfinite == "error"

    def examine(self, batch: Batch) -> None:
        """Refuse a batch that has an error, and collect its totals for the witness.

        InputError if the input is not finite, or a product overflows; DeviceFailed if a product
        fails its proof.
        """
        fetch, finite = self._machine.fetch, np.ones(1, bool)  # or a flag for each matrix
        if batch.product is not None:
            finite = np.isfinite(fetch(batch.product))
            finite[batch.left_out] = True
            if self._strict and not finite.all():
                raise self._not_finite(batch.first + int(finite.argmin()))
        if batch.worst is None:
            return
        batch.job.totals.append(fetch(batch.total))
        weights = batch.weights
        counted = batch.count if weights is None else np.maximum(np.abs(weights), 1).sum()
        batch.job.rows += float(counted)
        if fetch(batch.worst) <= 1.0:
            return
        ratio = fetch(batch.ratio)
        wrong = ~(ratio <= 1.0) & finite  # numbers that are not finite were allowed
        if wrong.any():
            i = int(wrong.argmax())
            real = self._problem.product_dtype != "int64"
            if real and batch.product is None and not np.isfinite(ratio[i]):
                raise self._not_finite(batch.first + i)
            raise DeviceFailed(
                f"the product of matrix {batch.first + i} is wrong: Freivalds' check is off by "
                f"{float(ratio[i]):.3g} times its tolerance; suspect the device and try another",
                suspect=True,
            )

    def witness(self, job: "ShardJob") -> Witness | None:
        """The witness of a shard's products, for the receipt, if they are proven and finite."""
        if not self.proof:
            return None
        with np.errstate(all="ignore"):
            total = end_to_end.summed(job.totals)
            tolerance = end_to_end.product_bound(self._problem, total, job.rows, self.bound)
            finite = np.isfinite([*total, tolerance]).all()
            return receipts.witness(total, tolerance) if finite else None

    def _not_finite(self, matrix: int) -> BadMatrix:
        """The error for a product that is not finite; the job looks whether its factors are."""
        result, dtype = self._problem.product, self._problem.dtype
        what = f"the product of matrix {matrix} overflows {dtype}, but its factors are finite"
        cure = "scale the input, or save it with wider elements, or set nonfinite: allow"
        if self._problem.result:
            what = f"{result} returned NaN or Inf for matrix {matrix}, which is finite"
            cure = "correct it, or set nonfinite: allow"
        return BadMatrix(what, cure, matrix)


class UserFunction(Operation):
    """A user's function makes the products of a batch; nothing can be proven about them."""

    def __init__(self, machine: Machine, plan: Plan, matrices: int) -> None:
        super().__init__(machine, plan, matrices)
        digests = plan.facts.function, plan.facts.depends
        self._function = user_function.load(plan.problem.product, *digests)
        self.compute = plan.problem.product_dtype

    def run(self, batch: Batch, left: Any, right: Any, out: Any) -> Any:
        """As `Multiplication.run`; without a call if no matrix of the batch counts."""
        xp, block, product = self._xp, left[: batch.count], out[: batch.count]
        if len(batch.left_out) == batch.count:
            return product
        if self._strict and block.dtype.kind != "i":
            # Before the call: the input is to blame, not the function, for what becomes of NaN.
            finite = xp.isfinite(largest(xp, block))
            finite[xp.asarray(batch.left_out)] = True  # they hold copies of another matrix
            if not finite.all():
                raise self._not_finite(batch.first + int(finite.argmin()))
        # Anew each time: the function may have loaded another BLAS meanwhile.
        with threads.single_threaded_blas()() if xp is np else nullcontext():
            found = user_function.call(
                self._problem.product, self._function, xp, block, batch.first, self._problem
            )
        product[...] = found
        batch.product = largest(xp, product)
        return product


class Multiplication(Operation):
    """The kernel makes the products, and each is proven separately."""

    def __init__(self, machine: Machine, plan: Plan, matrices: int) -> None:
        super().__init__(machine, plan, matrices)
        seed = int.from_bytes(os.urandom(6))
        if plan.settings.verify:
            self.proof = {"method": "freivalds", "vectors": VECTORS, "seed": seed}
        self._kernel = gemm.kernel(machine.xp, plan.problem, plan.settings.precision)
        self.compute = self._kernel.compute
        # With a proof, a finite ratio implies that factors and product are finite.
        self._look = not self._strict or not self.proof
        self._offset: Any = None
        if plan.offset is not None:
            row = np.frombuffer(plan.offset, np.dtype(plan.problem.dtype).newbyteorder("<"))
            self._offset = machine.xp.asarray(row.astype(plan.problem.dtype))
            self._centred = machine.xp.zeros((matrices, *plan.problem.left), plan.problem.dtype)
        group = min(matrices, plan.problem.proof_matrices)
        self._checker = freivalds.checker(machine.xp, plan.problem, self.compute, seed, group)
        self.bound = self._checker.bound

    def try_arithmetic(self, left: Any, right: Any, out: Any) -> None:
        """Refuse a lower precision, by a known product in memory of batches; NumPy's is known."""
        if not self.proof or self._xp is np or "int" in self._problem.dtype:
            return
        count = min(len(left), self._problem.call_matrices)
        factors = [_part(x, count) for x in (left, right) if x is not None]

        def multiply() -> Any:
            self._kernel.multiply(left, right, out, count)
            return out[:count]

        with self._machine.work():
            gemm.check_precision(multiply, factors, self.compute)

    def run(self, batch: Batch, left: Any, right: Any, out: Any) -> Any:
        """Compute the products of a batch on the work track, and return them, ``(n, m, p)``."""
        xp, count, product = self._xp, batch.count, out[: batch.count]
        block, other = left[:count], _part(right, count)
        if self.compute == "int64":
            _check_integers(self._problem, block, other, batch.first)
        if self._offset is not None:  # into other memory: hashing may still read the block
            xp.subtract(block, self._offset, out=self._centred[:count])
            left, block = self._centred, self._centred[:count]
        self._kernel.multiply(left, right, out, count)
        if self._look and product.dtype.kind != "i":
            batch.product = largest(xp, product)
        if self.proof:
            # Not beside later work that overwrites what is proven: the centred block, or products
            # of weight 0. The same for all batches, as the checker has memory for one stream.
            alone, machine = self._offset is not None or batch.weights is not None, self._machine
            with machine.work() if alone else machine.proof():
                self._prove(batch, block, other, product)
        return product

    def _prove(self, batch: Batch, block: Any, other: Any, product: Any) -> None:
        """Queue the check of a batch's products, and the sum of their forms."""
        xp = self._xp
        batch.ratio = self._checker.check(_signed(block), _signed(other), product)
        forms, weights = self._checker.forms, None
        if len(batch.left_out):  # an infinite B may have made NaN of them
            places = xp.asarray(batch.left_out)
            batch.ratio[places], forms[:, places] = 0, 0
        if batch.weights is not None:
            # Not the copy of the weights that the sum uses: an error in that copy must show.
            weights = xp.asarray(batch.weights)
        batch.worst, batch.total = batch.ratio.max(), end_to_end.add_up(xp, forms, weights)


def _part(right: Any, count: int) -> Any:
    """The first matrices of a factor, or the one B that serves all."""
    return right[:count] if right is not None and right.ndim == 3 else right


def _signed(block: Any) -> Any:
    """The block, with uint64 viewed as int64: `_check_integers` has refused any larger number."""
    return block.view("int64") if block is not None and block.dtype == "uint64" else block


def largest(xp: Any, stack: Any) -> Any:
    """The largest modulus of each matrix, of re and im apart; NaN if it holds NaN."""
    high, low = _ends(reals(stack))
    return xp.maximum(high, -low)


def _ends(stack: Any) -> tuple[Any, Any]:
    """The largest and the smallest number of each matrix ``(m, p)`` of a stack."""
    n, m, p = stack.shape
    # On a GPU one block of threads takes each row: few long rows would leave it idle. NumPy takes
    # many times as long for many short rows.
    stack = stack.reshape(n, m if n < m and p >= _LONG_ROW else 1, -1)
    return stack.max(axis=2).max(axis=1), stack.min(axis=2).min(axis=1)


def _check_integers(problem: Problem, left: Any, right: Any, first: int) -> None:
    """Refuse integers whose products might not fit int64; rounding errs on the safe side."""
    moduli = []  # the largest of each matrix, in float64, which does not overflow
    for block in (left, right):
        if block is not None:
            ends = [end.tolist() for end in _ends(block if block.ndim == 3 else block[None])]
            moduli.append(np.abs(np.array(ends, float)).max(axis=0))
    a, b = moduli[0], moduli[-1]
    bound = np.maximum(problem.factor_shapes[0][1] * a * b, np.maximum(a, b))
    wrong = bound > 2.0**63 * (1 - 1e-15)
    if wrong.any():
        matrix = first + int(wrong.argmax())
        what = f"the product of matrix {matrix} may not fit int64"
        raise BadMatrix(what, "save the input as float64", matrix)
