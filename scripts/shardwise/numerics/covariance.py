"""Covariance, correlation and mean of the rows of all matrices, from their sums.

Let c be the offset, S the sum of ``(A - c).H @ (A - c)`` and s the sum of the n rows of all
``A - c``. The covariance is ``(S - s.H s / n) / (n - ddof)``, exactly for any c. The weight of a
matrix applies to each of its rows; n and the divisor are then those of ``numpy.cov(...,
aweights=...)``. docs/statistics.md has the errors.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.plan.covariance import count_rows
from shardwise.plan.plan import Plan


class Covariance:
    """Covariance and correlation, computed for some elements at a time.

    The covariance times its divisor (that of `numpy.cov`) is ``Σ factor * given +
    Σ outer(u, v.conj())``. Each given matrix has a factor and a diagonal ``(k,)``; each of the
    terms is a pair of rows u, v ``(k,)``.
    """

    def __init__(
        self, factors: Sequence[float], terms: Sequence[Any], divisor: float, diagonals: np.ndarray
    ) -> None:
        self._factors, self._terms, self._divisor = factors, terms, divisor
        each = np.arange(diagonals.shape[1])
        with np.errstate(all="ignore"):
            variances = self._centred(diagonals, each, each).real / divisor
            self._scale = np.sqrt(np.maximum(variances, 0))

    def elements(self, given: np.ndarray, low: int) -> dict[str, np.ndarray]:
        """Covariance and correlation at the elements from number ``low`` of the flat matrix on.

        ``given`` is ``(matrices, some)``. The correlation with a column that never changes is NaN.
        """
        i, j = np.divmod(np.arange(low, low + given.shape[1]), len(self._scale))
        with np.errstate(all="ignore"):
            found = self._centred(given, i, j) / self._divisor
            alike = found / self._scale[i] / self._scale[j]
            alike[i == j] = 1
            alike[(self._scale[i] == 0) | (self._scale[j] == 0)] = np.nan
        return {"covariance": found, "correlation": alike}

    def _centred(self, given: np.ndarray, i: np.ndarray, j: np.ndarray) -> Any:
        """The covariance times its divisor, at rows ``i`` and columns ``j``."""
        found = sum(factor * each for factor, each in zip(self._factors, given, strict=True))
        for u, v in self._terms:  # in this order: integer terms come first, modulo 2⁶⁴
            found = found + u[i] * v[j].conj()
        return found


def of_sum(
    plan: Plan, sums: np.ndarray, diagonal: np.ndarray
) -> tuple[Covariance, dict[str, np.ndarray]]:
    """The covariance of a sum S, whose ``elements`` have to be given conjugated; and two rows.

    ``sums`` ``(k,)`` adds up all rows, each minus the offset, in float64, complex128 or int64;
    ``diagonal`` is that of S. The rows are the results ``row_mean`` and ``offset``.
    """
    assert plan.facts.covariance is not None
    n, divisor = count_rows(plan.problem, plan.per_matrix.weights, plan.facts.covariance.ddof)
    rest, shift, terms = sums, np.zeros_like(sums), list[Any]()
    if sums.dtype.kind == "i":  # subtracts the integers nearest to the means, exactly
        shift = (sums + int(n) // 2) // int(n)
        rest, terms = sums - n * shift, [(-shift, sums), (-sums, shift), (n * shift, shift)]
    terms.append((-rest, rest / n))
    offset = np.zeros(len(sums), plan.problem.dtype)
    if plan.offset is not None:
        offset = np.frombuffer(plan.offset, np.dtype(plan.problem.dtype).newbyteorder("<"))
    offset = offset.astype(np.result_type(sums, 1.0))
    rows = {"row_mean": offset + shift + rest / n, "offset": offset}
    return Covariance([1], terms, divisor, diagonal[None]), rows


def of_groups(
    counts: Sequence[tuple[float, float]], means: np.ndarray, divisor: float, diagonals: np.ndarray
) -> tuple[Covariance, np.ndarray]:
    """Merge the covariances of several groups of rows; also returns the mean of all rows.

    ``counts`` has for each group its number of rows and the divisor of its covariance; ``means``
    ``(groups, k)`` its mean row.
    """
    rows, divisors = np.array(counts).T
    with np.errstate(all="ignore"):
        # Relative to the first mean: if all means are equal, the result is exactly that mean.
        mean = means[0] + ((means - means[0]) * (rows / rows.sum())[:, None]).sum(axis=0)
        steps = means - mean
        terms = list(zip(rows[:, None] * steps, steps, strict=True))
    return Covariance(divisors.tolist(), terms, divisor, diagonals), mean
