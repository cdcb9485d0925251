"""Covariance, correlation and mean of the rows of all matrices, from their sums.

With the offset c, S the sum of ``(A - c).H @ (A - c)``, s that of the n rows of all ``A - c``, the
covariance is ``(S - s.H s / n) / (n - ddof)``, exactly for any c. Where each matrix counts times a
weight, so do its rows, and n and the divisor are those of ``numpy.cov(..., aweights=...)``.
docs/statistics.md has the errors.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.plan.covariance import count_rows
from shardwise.plan.plan import Plan


class Covariance:
    """Covariance and correlation, some of their elements at a time.

    Times its divisor, which is as `numpy.cov` has it, the covariance is ``Σ factor given +
    Σ outer(u, v.conj())``, of matrices that are given, each with a factor and its diagonal
    ``(k,)``, and of pairs u, v of rows ``(k,)``, the terms.
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
        """Covariance and correlation at the elements ``(matrices, some)`` from number ``low`` on.

        The correlation with a column that never changes is NaN.
        """
        i, j = np.divmod(np.arange(low, low + given.shape[1]), len(self._scale))
        with np.errstate(all="ignore"):
            found = self._centred(given, i, j) / self._divisor
            alike = found / self._scale[i] / self._scale[j]
            alike[i == j] = 1
            alike[(self._scale[i] == 0) | (self._scale[j] == 0)] = np.nan
        return {"covariance": found, "correlation": alike}

    def _centred(self, given: np.ndarray, i: np.ndarray, j: np.ndarray) -> Any:
        """The covariance times its divisor at some places."""
        found = sum(factor * each for factor, each in zip(self._factors, given, strict=True))
        for u, v in self._terms:  # one after the other: whole numbers first, and modulo 2⁶⁴
            found = found + u[i] * v[j].conj()
        return found


def of_sum(
    plan: Plan, sums: np.ndarray, diagonal: np.ndarray
) -> tuple[Covariance, dict[str, np.ndarray]]:
    """What ``covariance: true`` adds to the sum S: a covariance of its conjugate, and rows.

    ``sums`` is the sum of all rows ``(k,)`` without the offset, in float64, complex128 or int64;
    ``diagonal`` is that of S.
    """
    assert plan.facts.covariance is not None
    n, divisor = count_rows(plan.problem, plan.per_matrix.weights, plan.facts.covariance.ddof)
    rest, shift, terms = sums, np.zeros_like(sums), list[Any]()
    if sums.dtype.kind == "i":  # the nearest ones to the mean are taken off exactly
        shift = (sums + int(n) // 2) // int(n)
        rest, terms = sums - n * shift, [(-shift, sums), (-sums, shift), (n * shift, shift)]
    terms.append((-rest, rest / n))
    offset = np.zeros(len(sums), plan.problem.dtype)
    if plan.offset is not None:
        offset = np.frombuffer(plan.offset, np.dtype(plan.dtype).newbyteorder("<"))
    offset = offset.astype(np.result_type(sums, 1.0))
    rows = {"row_mean": offset + shift + rest / n, "offset": offset}
    return Covariance([1], terms, divisor, diagonal[None]), rows


def of_groups(
    counts: Sequence[tuple[float, float]], means: np.ndarray, divisor: float, diagonals: np.ndarray
) -> tuple[Covariance, np.ndarray]:
    """The covariance of the rows of several groups, of the covariances of these; and their mean.

    ``counts`` are the rows of each group, and the divisor of its covariance; ``means`` its means,
    ``(groups, k)``.
    """
    rows, divisors = np.array(counts).T
    with np.errstate(all="ignore"):
        # From the first on: of equal means the mean is the same, without any rounding.
        mean = means[0] + ((means - means[0]) * (rows / rows.sum())[:, None]).sum(axis=0)
        steps = means - mean
        terms = list(zip(rows[:, None] * steps, steps, strict=True))
    return Covariance(divisors.tolist(), terms, divisor, diagonals), mean
