"""Covariance, correlation and mean of the rows of all matrices, from their sums.

With the offset c, S the sum of ``(A - c).H @ (A - c)``, s that of the n rows of all ``A - c``, the
covariance is ``(S - s.H s / n) / (n - ddof)``, exactly for any c. Where each matrix counts times a
weight, so do its rows, and n and the divisor are those of ``numpy.cov(..., aweights=...)``.
docs/statistics.md has the errors.

Covariances of several groups of rows are merged by the formula of T. F. Chan, G. H. Golub and R. J.
LeVeque, "Algorithms for Computing the Sample Variance", The American Statistician 37(3), 1983.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from shardwise.plan.covariance import count_rows
from shardwise.plan.plan import Plan


class _Matrices:
    """Covariance and correlation, some of their elements at a time."""

    def __init__(self, columns: int, divisor: float) -> None:
        self._columns, self._divisor = columns, divisor
        self._scale = np.zeros(columns)

    def learn(self, diagonal: np.ndarray) -> None:
        """Take the diagonal ``(..., k)`` of what `elements` gets: correlations depend on it."""
        each = np.arange(self._columns)
        with np.errstate(all="ignore"):
            variances = self._centred(diagonal, each, each).real / self._divisor
            self._scale = np.sqrt(np.maximum(variances, 0))

    def elements(self, given: np.ndarray, low: int) -> dict[str, np.ndarray]:
        """Covariance and correlation at the elements ``(..., some)`` from number ``low`` on.

        The correlation with a column that never changes is NaN.
        """
        i, j = np.divmod(np.arange(low, low + given.shape[-1]), self._columns)
        with np.errstate(all="ignore"):
            found = self._centred(given, i, j) / self._divisor
            alike = found / self._scale[i] / self._scale[j]
            alike[i == j] = np.where(self._scale[i[i == j]] > 0, 1, np.nan)
        return {"covariance": found, "correlation": alike}

    def _centred(self, given: np.ndarray, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """The covariance times its divisor at some places, conjugated as `numpy.cov` has it."""
        raise NotImplementedError


class Covariance(_Matrices):
    """The results that ``covariance: true`` adds to the sum S, whose elements they are formed of.

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
        self._rows, divisor = count_rows(problem, plan.per_matrix.weights, ddof)
        super().__init__(problem.left[1], divisor)
        # Of whole numbers the nearest ones to the mean are taken off exactly: nothing is lost.
        whole = sums.dtype.kind == "i"
        self._shift = _nearest(sums, int(self._rows)) if whole else np.zeros_like(sums)
        self._sums = sums
        self._rest = sums - self._rows * self._shift
        self._offset = np.zeros(self._columns, problem.dtype)
        if plan.offset is not None:
            self._offset = np.frombuffer(plan.offset, np.dtype(plan.dtype).newbyteorder("<"))

    def rows(self) -> dict[str, np.ndarray]:
        """The results that are rows ``(k,)``."""
        kind = "complex128" if self._sums.dtype.kind == "c" else "float64"
        offset = self._offset.astype(kind)
        return {"row_mean": offset + self._shift + self._rest / self._rows, "offset": offset}

    def _centred(self, total: np.ndarray, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        one, other = self._shift[i], self._shift[j]
        if total.dtype.kind == "i":  # modulo 2⁶⁴, in which it fits
            total = total - one * self._sums[j] - self._sums[i] * other + self._rows * one * other
        found: np.ndarray = total - self._rest[i].conj() * (self._rest[j] / self._rows)
        return found.conj()


class Group(NamedTuple):
    """Rows whose covariance is there: how many, its divisor, and their mean ``(k,)``."""

    rows: float
    divisor: float
    mean: np.ndarray


class Merged(_Matrices):
    """The covariance of the rows of several groups, formed of the covariances ``(groups, some)``.

    ``mean`` is that of all rows; ``divisor`` what the covariance is divided by.
    """

    def __init__(self, groups: Iterable[Group], divisor: float) -> None:
        self._terms = list[tuple[float, float, np.ndarray]]()
        self.mean, rows = np.zeros(1), 0.0
        for group in groups:
            all_rows = rows + group.rows
            with np.errstate(all="ignore"):
                step = group.mean - self.mean
                self.mean = self.mean + step * (group.rows / all_rows)
            self._terms.append((group.divisor, rows * (group.rows / all_rows), step))
            rows = all_rows
        super().__init__(len(self.mean), divisor)

    def _centred(self, given: np.ndarray, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        found = np.zeros_like(given[0])
        for own, (divisor, factor, step) in zip(given, self._terms, strict=True):
            found += own * divisor + factor * step[i] * step[j].conj()
        return found


def _nearest(sums: np.ndarray, rows: int) -> Any:
    """The whole numbers nearest to ``sums / rows``."""
    return (sums + rows // 2) // rows
