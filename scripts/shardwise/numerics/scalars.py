"""Scalars of ``summary.json``: what the statistics say over all elements of all products.

They are formed from the results of :mod:`~shardwise.numerics.statistics`, a stripe of the elements
at a time, in float64. Stripes are put together in the order of the elements, so ranks change no
bit.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

_LOW = 0xFFFFFFFF


class Scalars:
    """Count, sum, mean, std, min, max and where these lie, as far as results give them.

    docs/statistics.md says which statistics each needs. The variance over everything is the mean
    of the elements' variances and the variance of their means.

    Parameters
    ----------
    matrices
        Number of products N.
    columns
        Columns of the result.
    """

    def __init__(self, matrices: int, columns: int) -> None:
        self._matrices, self._columns = matrices, columns
        self._stripes: dict[int, dict[str, Any]] = {}

    @np.errstate(all="ignore")
    def add(self, results: Mapping[str, np.ndarray], low: int) -> None:
        """Add arrays ``(width,)`` by the names of statistics, from element ``low`` on."""
        stripe: dict[str, Any] = {"elements": len(next(iter(results.values())))}
        if "sum" in results:
            total = results["sum"]
            parts = [total.real, total.imag] if total.dtype.kind == "c" else [total]
            stripe["sum"] = [_sum(part) for part in parts]
            if "std" in results:
                means = [part / self._matrices for part in parts]
                stripe["means"] = [float(mean.mean()) for mean in means]
                # Shifted first: a variance that is small beside the mean keeps its digits.
                between = sum(float((mean - mean.mean()).var()) for mean in means)
                within = float((results["std"] ** 2).mean())
                # Where a spread is infinite or NaN, means that are infinite too add nothing to it.
                stripe["spread"] = within + between if math.isfinite(within) else within
        for name in ("min", "max"):
            if name in results:
                stripe[name] = _extreme(name, results[name], results[f"arg{name}"], low)
        self._stripes[low] = stripe

    def dump(self) -> list[np.ndarray]:
        """The state as C-contiguous arrays."""
        return [np.frombuffer(json.dumps(list(self._stripes.items())).encode(), np.uint8)]

    def merge(self, dump: list[np.ndarray]) -> None:
        """Add the dump of another rank."""
        self._stripes |= json.loads(dump[0].tobytes())

    @np.errstate(all="ignore")
    def summary(self) -> dict[str, Any]:
        """The scalars as JSON has them.

        Complex numbers are ``[real, imaginary]``; sums of integers are whole numbers of any size;
        what is not finite is the text ``NaN``, ``Infinity`` or ``-Infinity``.
        """
        stripes = [stripe for _, stripe in sorted(self._stripes.items())]
        elements = sum(stripe["elements"] for stripe in stripes)
        count = elements * self._matrices
        scalars: dict[str, Any] = {"count": count}
        if "sum" in stripes[0]:
            totals = [sum(parts) for parts in zip(*(s["sum"] for s in stripes), strict=True)]
            scalars["sum"] = _number(totals)
            scalars["mean"] = _number([total / count for total in totals])
        if "spread" in stripes[0]:
            means, sizes = (np.array([s[key] for s in stripes]) for key in ("means", "elements"))
            between = (means - np.average(means, axis=0, weights=sizes)) ** 2
            spread = np.array([s["spread"] for s in stripes])
            spread = np.where(np.isfinite(spread), spread + between.sum(axis=1), spread)
            scalars["std"] = _json(math.sqrt(sizes @ spread / elements))
        where = {}
        for name in [name for name in ("min", "max") if name in stripes[0]]:
            value, matrix, element = _most_extreme(name, [s[name] for s in stripes])
            row, column = divmod(element, self._columns)
            scalars[name] = _json(value)
            where[name] = {"matrix": matrix, "row": row, "column": column}
        return scalars | ({"where": where} if where else {})


def _sum(values: np.ndarray) -> float | int:
    """The sum of float64 numbers; that of int64 numbers exactly."""
    if values.dtype.kind == "f":
        return float(values.sum())
    return (int((values >> 32).sum()) << 32) + int((values & _LOW).sum())


def _extreme(name: str, values: np.ndarray, matrices: np.ndarray, low: int) -> list[Any]:
    """Value, matrix and element of the extreme of some elements."""
    best = getattr(values, name)()
    level = np.flatnonzero(np.isnan(values) if np.isnan(best) else values == best)
    first = level[matrices[level].argmin()]
    return [(best + values.dtype.type(0)).item(), int(matrices[first]), low + int(first)]


def _most_extreme(name: str, extremes: list[list[Any]]) -> list[Any]:
    """NaN or the extreme; of equal ones that of the lowest matrix, then of the first element."""
    nan = [extreme for extreme in extremes if math.isnan(extreme[0])]
    sign = 1 if name == "min" else -1
    return min(nan or extremes, key=lambda one: (0 if nan else sign * one[0], *one[1:]))


def _number(parts: list[Any]) -> Any:
    """A real number as it is, a complex one as a list."""
    return [_json(part) for part in parts] if len(parts) > 1 else _json(parts[0])


def _json(value: float) -> float | str:
    if isinstance(value, int) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
