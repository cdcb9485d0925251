"""Covariance, correlation and mean of the rows of all matrices, from their sums.

With the offset c, S the sum of ``(A - c).H @ (A - c)``, s that of the n rows of all ``A - c``, the
covariance is ``(S - s.H s / n) / (n - ddof)``, exactly for any c. Where each matrix counts times a
weight, so do its rows, and n and the divisor are those of ``numpy.cov(..., aweights=...)``.
docs/statistics.md has the errors.
"""

from typing import Any

import numpy as np

from shardwise.plan.covariance import count_rows
from shardwise.plan.plan import Plan


class Covariance:
    """The results that ``covariance: true`` adds to the sum.

    Parameters
    ----------
    plan
        The plan; it knows the number of rows, n, and their weights.
    sums
        The sum of all rows ``(k,)`` without the offset; float64, complex128 or int64.
    """

    def __init__(self, plan: Plan, sums: np.ndarray) -> None:
        problem = plan.problem
        assert plan.facts.covariance is not None
        ddof = plan.facts.covariance.ddof
        self._rows, self._divisor = count_rows(problem, plan.per_matrix.weights, ddof)
        self._columns = problem.left[1]
        # Of whole numbers the nearest ones to the mean are taken off exactly: nothing is lost.
        whole = sums.dtype.kind == "i"
        self._shift = _nearest(sums, int(self._rows)) if whole else np.zeros_like(sums)
        self._sums = sums
        self._rest = sums - self._rows * self._shift
        self._offset = np.zeros(self._columns, problem.dtype)
        if plan.offset is not None:
            self._offset = np.frombuffer(plan.offset, np.dtype(plan.dtype).newbyteorder("<"))
        self._scale = np.zeros(self._columns)

    def rows(self) -> dict[str, np.ndarray]:
        """The results that are rows ``(k,)``."""
        kind = "complex128" if self._sums.dtype.kind == "c" else "float64"
        offset = self._offset.astype(kind)
        return {"row_mean": offset + self._shift + self._rest / self._rows, "offset": offset}

    def learn(self, diagonal: np.ndarray) -> None:
        """Take the diagonal ``(k,)`` of S, which :meth:`elements` divides correlations by."""
        each = np.arange(self._columns)
        with np.errstate(all="ignore"):
            variances = self._centred(diagonal, each, each).real / self._divisor
            self._scale = np.sqrt(np.maximum(variances, 0))

    def elements(self, total: np.ndarray, low: int) -> dict[str, np.ndarray]:
        """Covariance and correlation of the elements of the flat S from number ``low`` on.

        The correlation with a column that never changes is NaN.
        """
        i, j = np.divmod(np.arange(low, low + len(total)), self._columns)
        with np.errstate(all="ignore"):
            found = self._centred(total, i, j) / self._divisor
            alike = found / self._scale[i] / self._scale[j]
            alike[i == j] = np.where(self._scale[i[i == j]] > 0, 1, np.nan)
        return {"covariance": found, "correlation": alike}

    def _centred(self, total: np.ndarray, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """``S - s.H s / n`` at some places, conjugated as `numpy.cov` has it."""
        one, other = self._shift[i], self._shift[j]
        if total.dtype.kind == "i":  # modulo 2⁶⁴, in which it fits
            total = total - one * self._sums[j] - self._sums[i] * other + self._rows * one * other
        found: np.ndarray = total - self._rest[i].conj() * (self._rest[j] / self._rows)
        return found.conj()


def _nearest(sums: np.ndarray, rows: int) -> Any:
    """The whole numbers nearest to ``sums / rows``."""
    return (sums + rows // 2) // rows
