"""The end-to-end proof as a receipt states it."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.errors import DeviceFailed
from shardwise.numerics.end_to_end import SEED, gap, parts_of, sum_bound, summed
from shardwise.plan.problem import Problem
from shardwise.records.receipts import ProductReceipt, Witness


def of(total: np.ndarray, tolerance: float) -> Witness:
    """The witness for a shard's receipt, from the total of its forms and its `product_bound`.

    DeviceFailed if products and factors disagree by more than that tolerance.
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
    contributions, size = [], 0.0
    for receipt in products:
        said = receipt.witness
        if said is None or said.seed != SEED:
            return receipt.no_witness or "its receipt is of an older version"
        contributions.append(_contribution(said, problem))
        size += said.mass + said.tolerance
    off, bound = gap(form, summed(contributions)), sum_bound(problem, size)
    if not (np.isfinite(form).all() and math.isfinite(bound)) or math.isnan(off):
        return "the sum, or its proof, is not finite in double precision"
    return off / bound if off else 0.0


def matches(problem: Problem, receipt: ProductReceipt, form: np.ndarray) -> bool:
    """Whether ``form``, computed from a shard's file, fits its receipt; True if that has none."""
    said = receipt.witness
    if said is None:
        return True
    bound = sum_bound(problem, said.mass + said.tolerance)
    return gap(form, _contribution(said, problem)) <= bound


def _contribution(said: Witness, problem: Problem) -> np.ndarray:
    """``(1,)`` or, complex, ``(2,)``: float64, or int64."""
    dtype = "int64" if "int" in problem.product_dtype else "float64"
    return np.array(said.contribution, dtype, ndmin=1)


def _to_json(number: np.ndarray) -> Any:
    return number.tolist() if len(number) > 1 else number.item()
