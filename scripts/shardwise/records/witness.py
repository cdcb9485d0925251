"""The end-to-end proof as a receipt states it."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.errors import DeviceFailed, short
from shardwise.numerics.end_to_end import SEED, gap, parts_of, sum_bound, summed
from shardwise.plan.problem import Problem
from shardwise.records.receipts import Number, ProductReceipt, Witness


def of(total: np.ndarray, tolerance: float) -> Witness:
    """The witness for a shard's receipt, from the total of its forms and its `product_bound`.

    Raises
    ------
    DeviceFailed
        If products and factors disagree by more than the tolerance.
    """
    one, other, mass = parts_of(total)
    if not gap(one, other) <= tolerance:
        raise DeviceFailed(
            "the products of the shard differ from what their factors give by "
            f"{gap(one, other) / (tolerance or 1):.3g} times the tolerance; suspect the device "
            "and try another",
            suspect=True,
        )
    return Witness(_to_json(one), _to_json(other), mass, float(tolerance), SEED)


def compare_sum(
    problem: Problem, products: Sequence[ProductReceipt], form: np.ndarray | None
) -> float | str:
    """How far the sum is from the receipts of all shards, as a fraction of the tolerance.

    A string says why this is unknown. ``form`` is ``lᵀ S r`` of the sum, None if there is no sum.
    """
    if form is None:
        return "there is no sum among the statistics"
    contributions, sizes = [], []
    for receipt in products:
        found = read(receipt, problem)
        if isinstance(found, str):
            return found
        contributions.append(found[0])
        sizes.append(np.array([found[1]]))
    if not np.isfinite(form).all():
        return "the sum is not finite"
    off = gap(form, summed(contributions))
    bound = sum_bound(problem, float(summed(sizes)[0]))
    if not math.isfinite(bound) or math.isnan(off):
        return "its numbers are too large for float64"
    return off / bound if off else 0.0


def matches(problem: Problem, receipt: ProductReceipt, form: np.ndarray) -> bool:
    """Whether ``form``, computed from a shard's file, fits its receipt; True if that has none."""
    found = read(receipt, problem)
    return isinstance(found, str) or gap(form, found[0]) <= sum_bound(problem, found[1])


def read(receipt: ProductReceipt, problem: Problem) -> tuple[np.ndarray, float] | str:
    """The contribution of a shard, and its mass plus its tolerance; or why they are unknown.

    The contribution is ``(1,)`` or, complex, ``(2,)``: float64, or int64. Raises ValueError if
    the receipt is damaged.
    """
    said = receipt.witness
    if said is None:
        return receipt.no_witness or "its receipt is of an older version"
    if said.seed != SEED:
        return f"its receipt has other weights (seed {short(said.seed)})"
    one, _ = (_from_json(n, problem.product_dtype) for n in (said.contribution, said.reference))
    return one, said.mass + said.tolerance


def _to_json(number: np.ndarray) -> Any:
    parts = number.tolist()
    return parts[0] if len(parts) == 1 else parts


def _from_json(value: Number, dtype: str) -> np.ndarray:
    """Read a number that `_to_json` has written, for products of a dtype."""
    parts = value if isinstance(value, list) else [value]
    # Checked here, as NumPy's casts would round a number that is not an integer.
    fits = "int" not in dtype or all(isinstance(part, int) for part in parts)
    if not fits or len(parts) != (2 if "complex" in dtype else 1):
        raise ValueError(f"{short(value)} is not a number of {dtype}")
    try:
        return np.array(parts, "int64" if "int" in dtype else "float64")
    except OverflowError as error:
        raise ValueError(f"{short(value)}: {error}") from None
