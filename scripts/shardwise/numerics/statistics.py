"""Statistics over all products, element by element: the same bits for any cut and any ranks.

A statistic takes runs of consecutive products, in any order. Like a `TreeSum` it hands its state
over as nodes, which another statistic of its kind takes. ``results(matrices)`` gives arrays
``(width,)`` by name, over all products; ``matrices`` is their number, or the sum of their weights.
They are valid until ``reset``. docs/statistics.md defines each, and says how far it may be off.
"""

from collections.abc import Iterable
from typing import Any, Union

import numpy as np

from shardwise.files.paths import SUMS
from shardwise.numerics.tree import TreeSum, reals
from shardwise.plan.per_matrix import NOTHING, Key, PerMatrix

_BLOCK = 2**18  # numbers at a time: they stay in a core's cache
Statistic = Union["_Total", "_Spread", "_Extreme"]


def choose(
    names: Iterable[str], width: int, dtype: str, said: PerMatrix = NOTHING
) -> list[Statistic]:
    """The fewest objects that give the named statistics, for products of a dtype.

    With weights there are only sum and mean, and with labels only `sums`.
    """
    wanted = set(names)
    made: list[Statistic] = []
    if wanted & {"sum", "mean"}:
        made.append(_Total(width, dtype, "mean" in wanted, said))
    if "std" in wanted:
        made.append(_Spread(width, dtype))
    made += [_Extreme(name, width, dtype) for name in ("min", "max") if name in wanted]
    return made


class _Total(TreeSum):
    """``sum``, and ``mean`` if asked for: the sum, divided by N, or by the sum of the weights.

    With labels ``sums``, an array ``(labels, width)``.
    """

    def __init__(self, width: int, dtype: str, mean: bool, said: PerMatrix) -> None:
        super().__init__(np, (width,), dtype, said)
        self._mean, self._labelled = mean, bool(said.names)

    def results(self, matrices: float) -> dict[str, np.ndarray]:
        totals = self.values()
        if self._labelled:
            return {SUMS: np.stack(totals)}
        (total,) = totals
        found = {"sum": total}
        if self._mean:
            # Divides both parts alone: a complex quotient is NaN where only one part is infinite.
            found["mean"] = (reals(total) / matrices).view(np.result_type(total, 1.0))
        return found


class _Spread(TreeSum):
    """``std`` of the population, float64. A node holds means, and squares of distances from them.

    Two nodes are joined by the formula of T. F. Chan, G. H. Golub and R. J. LeVeque, "Algorithms
    for Computing the Sample Variance", The American Statistician 37(3), 1983. Complex numbers are
    pairs of real ones, and their variance is the sum of those of both parts.
    """

    def __init__(self, width: int, dtype: str) -> None:
        self._pair = 2 if "complex" in dtype else 1
        super().__init__(np, (2, width * self._pair), "float64")

    def _fold(self, rows: Any, out: Any, weights: Any) -> None:  # weights is always None
        rows, step = reals(rows), max(1, _BLOCK // len(rows))
        for low in range(0, rows.shape[1], step):
            means = rows[:, low : low + step].astype(np.float64)
            squares = np.zeros_like(means)
            each = 1
            while len(means) > 1:
                halves = (means[::2], squares[::2]), (means[1::2], squares[1::2])
                means, squares = _joined(each, *halves[0], each, *halves[1])
                each *= 2
            out[:, low : low + step] = means[0], squares[0]

    def _join(self, left: Any, right: Any, out: Any, n: int, k: int) -> None:
        out[...] = _joined(n, left[0], left[1], k, right[0], right[1])

    def results(self, matrices: float) -> dict[str, np.ndarray]:
        _, squares = self._whole(self.nodes())
        spread = np.sqrt(squares.reshape(-1, self._pair).sum(axis=1) / matrices)
        spread[np.isnan(spread)] = np.nan  # removes the sign of NaN, as in all statistics
        return {"std": spread}


def _joined(
    n: int, mean: np.ndarray, square: np.ndarray, k: int, other: np.ndarray, others: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Join n numbers and k more, each given by means and sums of squared distances from them."""
    apart = other - mean
    return mean + apart * (k / (n + k)), square + others + apart * apart * (n * k / (n + k))


class _Extreme(TreeSum):
    """``min`` or ``max``, in float64 or int64, in a single node; zeros and NaN have no sign."""

    def __init__(self, name: str, width: int, dtype: str) -> None:
        super().__init__(np, (width,), dtype)
        self._name, self._better = name, np.minimum if name == "min" else np.maximum

    def add(self, block: np.ndarray, first: int) -> None:
        step = max(1, _BLOCK // len(block))
        tiles = range(0, block.shape[1], step)
        parts = [self._better.reduce(block[:, low : low + step], axis=0) for low in tiles]
        self.put((0, 0), np.concatenate(parts))

    def put(self, key: Key, node: np.ndarray, own: bool = False) -> None:
        if key in self._nodes:
            self._better(self._nodes[key], node, out=self._nodes[key])
        else:
            super().put(key, node)

    def results(self, matrices: float) -> dict[str, np.ndarray]:
        return {self._name: self.values()[0] + 0}
