"""The end-to-end proof as a receipt states it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.errors import DeviceFailed, IntegrityError, short
from shardwise.numerics.end_to_end import SEED, gap, parts_of, sum_bound, summed
from shardwise.plan.problem import Problem
from shardwise.records.receipts import Number, ProductReceipt


@dataclass(frozen=True)
class ShardWitness:
    """The numbers of a shard's end-to-end proof.

    Attributes
    ----------
    contribution, reference
        ``(1,)`` or, complex, ``(2,)``: float64, or int64.
    mass, tolerance
        Mass of the shard, and how far the two numbers may be apart.
    """

    contribution: np.ndarray
    reference: np.ndarray
    mass: float
    tolerance: float

    @classmethod
    def of(cls, total: np.ndarray, tolerance: float) -> "ShardWitness":
        """Those of `ShardForms` and :func:`product_bound`.

        Raises
        ------
        DeviceFailed
            Where products and factors disagree by more than all single products may.
        """
        one, other, mass = parts_of(total)
        if not gap(one, other) <= tolerance:
            raise DeviceFailed(
                "the products of the shard do not come to what their factors do, by "
                f"{gap(one, other) / (tolerance or 1):.3g} times the tolerance; suspect the device "
                "and try another",
                suspect=True,
            )
        return cls(one, other, mass, tolerance)

    def to_json(self) -> dict[str, Any]:
        """What the receipt says."""
        return {
            "contribution": number_to_json(self.contribution),
            "reference": number_to_json(self.reference),
            "mass": self.mass,
            "tolerance": self.tolerance,
            "seed": SEED,
        }


def compare_sum(
    problem: Problem, products: Sequence[ProductReceipt], form: np.ndarray | None
) -> float | str:
    """How far the sum is from what the receipts of all shards say, as a part of the tolerance.

    Or why nothing can be said. ``form`` is the ``lᵀ S r`` of the sum, None where there is no sum.
    """
    if form is None:
        return "there is no sum among the statistics"
    witnesses: list[ShardWitness] = []
    for receipt in products:
        account = read(receipt, problem)
        if isinstance(account, str):
            return account
        witnesses.append(account)
    if not np.isfinite(form).all():
        return "the sum is not finite"
    (size,) = summed([np.array([w.mass + w.tolerance]) for w in witnesses])
    off = gap(form, summed([w.contribution for w in witnesses]))
    bound = sum_bound(problem, float(size))
    if not math.isfinite(bound) or math.isnan(off):
        return "its numbers are too large for float64"
    return off / bound if off else 0.0


def matches(problem: Problem, receipt: ProductReceipt, form: np.ndarray) -> bool:
    """Whether the number of a shard's file is that of its receipt."""
    witness = read(receipt, problem)
    if isinstance(witness, str):
        return True
    bound = sum_bound(problem, witness.mass + witness.tolerance)
    return gap(form, witness.contribution) <= bound


def number_to_json(number: np.ndarray) -> Any:
    """A number as JSON has it: complex ones are ``[re, im]``."""
    parts = number.tolist()
    return parts[0] if len(parts) == 1 else parts


def number_from_json(value: Number, dtype: str) -> np.ndarray:
    """A number that :func:`number_to_json` has written, of products of a dtype.

    Raises
    ------
    ValueError
        Where it is no such number.
    """
    parts = value if isinstance(value, list) else [value]
    # Without NumPy's casts: they would round what is no whole number.
    fits = "int" not in dtype or all(isinstance(part, int) for part in parts)
    if not fits or len(parts) != (2 if "complex" in dtype else 1):
        raise ValueError(f"{short(value)} is no number of {dtype}")
    try:
        return np.array(parts, "int64" if "int" in dtype else "float64")
    except OverflowError as error:
        raise ValueError(f"{short(value)}: {error}") from None


def read(receipt: ProductReceipt, problem: Problem) -> ShardWitness | str:
    """The witness in the receipt of a product, or why there is none.

    Raises
    ------
    IntegrityError
        If the witness is damaged.
    """
    said = receipt.witness
    if said is None:
        return receipt.no_witness or "its receipt is of an older version"
    if said.seed != SEED:
        return f"its receipt has other weights (seed {short(said.seed)})"
    try:
        one = number_from_json(said.contribution, problem.product_dtype)
        other = number_from_json(said.reference, problem.product_dtype)
    except ValueError as error:
        raise IntegrityError(f"its receipt has a damaged witness ({error!r})") from None
    return ShardWitness(one, other, said.mass, said.tolerance)
