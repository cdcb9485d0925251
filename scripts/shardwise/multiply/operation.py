"""What is done with a batch: its matrices are multiplied and proven, or given to a function.

In the batch's report an operation leaves what has to be checked once its queued work is done.
"""

import os
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardwise.errors import BadMatrix
from shardwise.multiply import blame
from shardwise.multiply.cuda import Cuda
from shardwise.multiply.host import Host
from shardwise.numerics import end_to_end, freivalds, gemm
from shardwise.numerics.tolerances import VECTORS
from shardwise.numerics.tree import reals
from shardwise.plan import memory, user_function
from shardwise.plan.plan import Plan
from shardwise.plan.problem import Problem
from shardwise.processes import threads

Machine = Host | Cuda


@dataclass
class BatchReport:
    """What has to be checked once a batch is done; fields that do not apply are None."""

    first: int  # matrix, by its index in the whole stack
    count: int
    # In host memory: the weights, and the places of those that are 0.
    weights: np.ndarray | None = None
    left_out: np.ndarray | None = None
    product: Any = None  # the largest modulus of each; infinite or NaN if an element is
    # How far each product is from its factors' own, in units of the tolerance.
    ratio: Any = None
    worst: Any = None  # the largest ratio
    forms: Any = None  # of each product, see `freivalds.Checker`
    total: Any = None  # the sum of all forms

    def add_up(self, xp: Any) -> None:
        """Queue the largest ratio and the sum of the forms of the whole batch."""
        if self.ratio is None:
            return
        if self.left_out is not None:  # with B, their zeros may have become NaN
            places = xp.asarray(self.left_out)
            self.ratio[places] = 0
            self.forms[:, places] = 0
        # Not the copy of the weights that the sum uses: an error in that copy must show.
        weights = None if self.weights is None else xp.asarray(self.weights)
        self.worst, self.total = self.ratio.max(), end_to_end.add_up(xp, self.forms, weights)

    def fetched(self, machine: Machine) -> "BatchReport":
        """The report in host memory, while its batch is still there; ratios only if one is bad."""
        host = replace(self)
        for name in ("product", "worst", "total", "ratio"):
            array = getattr(self, name)
            if array is not None and not (name == "ratio" and host.worst <= 1):
                setattr(host, name, machine.fetch(array))
        return host


class Operation:
    """The base class of operations, which are defined below."""

    compute: str  # the arithmetic that products are accumulated in
    proof: dict[str, Any] | None = None  # for the receipt
    bound = (0.0, 0.0)  # of the proof, see `freivalds.Checker`

    def __init__(self, machine: Machine, plan: Plan) -> None:
        self._xp, self._machine, self._problem = machine.xp, machine, plan.problem
        self.strict = plan.settings.nonfinite == "error"

    def allocate(self, matrices: int) -> None:
        """Allocate what else batches of this many matrices need."""

    def try_arithmetic(self, left: Any, right: Any, out: Any) -> None:
        """Check the precision with a known product, in memory of batches that holds nothing yet."""

    def run(self, report: BatchReport, left: Any, right: Any, out: Any) -> Any:
        """Compute the products of a batch on the work track, and return them, ``(n, m, p)``."""
        raise NotImplementedError


class UserFunction(Operation):
    """A user's function makes the products of a batch; nothing can be proven about them."""

    def __init__(self, machine: Machine, plan: Plan) -> None:
        super().__init__(machine, plan)
        user_function.check_used(plan.facts.depends)
        self._function = user_function.load(plan.problem.product, plan.facts.function)
        self.compute = plan.problem.product_dtype

    def run(self, report: BatchReport, left: Any, right: Any, out: Any) -> Any:
        xp, block, product = self._xp, left[: report.count], out[: report.count]
        if self.strict and block.dtype.kind != "i":
            # Before the call: the input is to blame, not the function, for what becomes of NaN.
            finite = xp.isfinite(largest(xp, block))
            if report.left_out is not None:  # they hold copies of another matrix
                finite[xp.asarray(report.left_out)] = True
            if not finite.all():
                raise blame.not_finite(self._problem, report.first + int(finite.argmin()))
        # Anew each time: the function may have loaded another BLAS meanwhile.
        with threads.single_threaded_blas()() if xp is np else nullcontext():
            found = user_function.call(
                self._problem.product, self._function, xp, block, report.first, self._problem
            )
        product[...] = found
        return product


class Multiplication(Operation):
    """The kernel makes the products, and each is proven separately."""

    def __init__(self, machine: Machine, plan: Plan) -> None:
        super().__init__(machine, plan)
        self._seed = int.from_bytes(os.urandom(6))
        if plan.settings.verify:
            self.proof = {"method": "freivalds", "vectors": VECTORS, "seed": self._seed}
        self._kernel = gemm.kernel(machine.xp, plan.problem, plan.settings.precision)
        self.compute = self._kernel.compute
        self._offset: Any = None
        if plan.offset is not None:
            row = np.frombuffer(plan.offset, np.dtype(plan.dtype).newbyteorder("<"))
            self._offset = machine.xp.asarray(row.astype(plan.dtype))

    def allocate(self, matrices: int) -> None:
        problem, group = self._problem, memory.proof_matrices(self._problem, matrices)
        if self._offset is not None:
            self._centred = self._xp.zeros((matrices, *problem.left), problem.dtype)
        self._checker = freivalds.checker(self._xp, problem, self.compute, self._seed, group)
        self.bound = self._checker.bound

    def try_arithmetic(self, left: Any, right: Any, out: Any) -> None:
        # Refuses a device of lower precision than was asked for; NumPy's is known.
        if not self.proof or self._xp is np or "int" in self._problem.dtype:
            return
        count = min(len(left), memory.call_matrices(self._problem))
        factors = [_part(x, count) for x in (left, right) if x is not None]

        def multiply() -> Any:
            self._kernel.multiply(left, right, out, count)
            return out[:count]

        with self._machine.work():
            gemm.check_precision(multiply, factors, self.compute)

    def run(self, report: BatchReport, left: Any, right: Any, out: Any) -> Any:
        count, product = report.count, out[: report.count]
        block, other = left[:count], _part(right, count)
        if self.compute == "int64":
            _check_integers(self._problem, block, other, report.first)
        if self._offset is not None:  # into other memory: hashing may still read the block
            self._xp.subtract(block, self._offset, out=self._centred[:count])
            left, block = self._centred, self._centred[:count]
        self._kernel.multiply(left, right, out, count)
        if self.proof:
            report.ratio = self._checker.check(_signed(block), _signed(other), product)
            report.forms = self._checker.forms
        return product


def _part(right: Any, count: int) -> Any:
    """The first matrices of a factor, or the one B that serves all."""
    return right[:count] if right is not None and right.ndim == 3 else right


def _signed(block: Any) -> Any:
    """The block, with uint64 viewed as int64: `_check_integers` has refused any larger number."""
    return block.view("int64") if block is not None and block.dtype == "uint64" else block


def largest(xp: Any, stack: Any) -> Any:
    """The largest modulus of each matrix, of re and im apart; NaN if it holds NaN."""
    numbers = reals(stack).reshape(len(stack), -1)
    return xp.maximum(numbers.max(axis=1), -numbers.min(axis=1))


def _check_integers(problem: Problem, left: Any, right: Any, first: int) -> None:
    """Refuse integers whose products might not fit int64."""
    inner, most = problem.factor_shapes[0][1], 2**63 - 1
    moduli = [_moduli(block) for block in (left, right) if block is not None]
    for i, a in enumerate(moduli[0]):
        b = moduli[-1][i if len(moduli[-1]) > 1 else 0]
        if max(a, b) > most or inner * a * b > most:
            raise BadMatrix(
                f"the product of matrix {first + i} may not fit int64 (its factors hold numbers up "
                f"to {max(a, b)})", "save the input as float64", first + i,
            )  # fmt: skip


def _moduli(block: Any) -> list[int]:
    """The largest modulus of each matrix, as Python integers, which do not overflow."""
    flat = block.reshape(block.shape[0] if block.ndim == 3 else 1, -1)
    tops, bottoms = flat.max(axis=1).tolist(), flat.min(axis=1).tolist()
    return [max(top, -bottom) for top, bottom in zip(tops, bottoms, strict=True)]
