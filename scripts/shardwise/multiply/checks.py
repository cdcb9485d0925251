"""Checks the reports of a shard's batches, and refuses what is wrong."""

from typing import Any

import numpy as np

from shardwise.errors import DeviceFailed
from shardwise.multiply import blame
from shardwise.multiply.operation import BatchReport, Operation
from shardwise.numerics import end_to_end
from shardwise.plan.plan import Plan
from shardwise.records import witness


class ShardChecks:
    """Looks at the reports of one shard's batches."""

    def __init__(self, plan: Plan, operation: Operation) -> None:
        self._problem, self._strict = plan.problem, plan.settings.nonfinite == "error"
        self.operation = operation
        self._totals: list[np.ndarray] = []  # the sum of each batch's forms
        self._rows = 0.0  # see `end_to_end.product_bound`

    def examine(self, report: BatchReport) -> None:
        """Refuse a batch whose report shows an error, and collect its totals for the witness.

        InputError if the input is not finite, or a product overflows; DeviceFailed if a product
        fails its proof.
        """
        finite: Any = True  # or a flag for each matrix
        if report.product is not None:
            finite = np.isfinite(report.product)
            if self._strict and not finite.all():
                raise blame.not_finite(self._problem, report.first + int(finite.argmin()))
        if report.worst is None:
            return
        self._totals.append(report.total)
        weights = report.weights
        self._rows += report.count if weights is None else np.maximum(np.abs(weights), 1).sum()
        if report.worst <= 1.0:
            return
        wrong = ~(report.ratio <= 1.0) & finite  # numbers that are not finite were allowed
        if wrong.any():
            i = int(wrong.argmax())
            real = self._problem.product_dtype != "int64"
            if real and report.product is None and not np.isfinite(report.ratio[i]):
                raise blame.not_finite(self._problem, report.first + i)
            raise DeviceFailed(
                f"the product of matrix {report.first + i} is wrong: Freivalds' check is off by "
                f"{float(report.ratio[i]):.3g} times its tolerance; suspect the device and try "
                "another",
                suspect=True,
            )

    def witness(self) -> dict[str, Any]:
        """For the receipt: the witness of the shard's products, or why there is none.

        DeviceFailed if products and factors disagree by more than all single products may.
        """
        problem, why = self._problem, "verify: false"
        if problem.result:
            why = "a user's function has no factors to compare with"
        elif self.operation.proof:
            total, bound = end_to_end.summed(self._totals), self.operation.bound
            tolerance = end_to_end.product_bound(problem, total, self._rows, bound)
            if np.isfinite([*total, tolerance]).all():
                return {"witness": witness.of(total, tolerance)}
            why = "a product, or its proof, is not finite in double precision"
        return {"witness": None, "no_witness": why}
