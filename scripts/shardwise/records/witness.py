"""The end-to-end proof as a receipt states it."""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.errors import IntegrityError, WrongProduct, short
from shardwise.numerics.end_to_end import gap, sum_bound
from shardwise.numerics.reference import SEED, parts_of, summed
from shardwise.plan.problem import Problem
from shardwise.records.receipts import CopyReceipt, ProductReceipt, Witness


@dataclass(frozen=True)
class SumComparison:
    """What the comparison of the sum with all receipts has come to.

    Attributes
    ----------
    shards
        How many shards were compared.
    off
        How far the sum is from them, as a part of the tolerance; NaN where these numbers leave the
        range of double precision.
    wrong
        Indices of shards whose contribution does not fit their reference.
    host
        Of how many of how many shards the CPU knew all matrices, or some.
    """

    shards: int
    off: float
    wrong: list[int]
    host: str


def compare_sum(
    problem: Problem, accounts: list["ShardWitness"], found: np.ndarray, plain: bool
) -> SumComparison:
    """Compare ``lᵀ S r`` of the sum with the receipts of all shards.

    Parameters
    ----------
    found
        What :class:`SumForm` has found.
    plain
        As :func:`sum_bound` has it.
    """
    gaps = [(gap(a.contribution, a.reference), a.tolerance) for a in accounts]
    wrong = [i for i, (own, tolerance) in enumerate(gaps) if not own <= tolerance]
    (size,) = summed([np.array([a.mass + a.tolerance]) for a in accounts])
    off = gap(found, summed([a.contribution for a in accounts]))
    hosts = Counter("some" if " of " in a.host else a.host for a in accounts)
    host = ", ".join(f"{kind} of {n}" for kind, n in sorted(hosts.items()))
    bound = sum_bound(problem, float(size), plain)
    off = math.nan if not math.isfinite(bound) else off / bound if off else 0.0
    return SumComparison(len(accounts), off, wrong, host)


def matches(problem: Problem, own: "ShardWitness", found: np.ndarray, plain: bool) -> bool:
    """Whether the number of a shard's file is that of its receipt."""
    bound = sum_bound(problem, own.mass + own.tolerance, plain)
    return gap(found, own.contribution) <= bound


# What a receipt says.


@dataclass(frozen=True)
class ShardWitness:
    """The witness of a shard, as its receipt has it.

    Attributes
    ----------
    contribution, reference
        ``(1,)`` or, complex, ``(2,)``: float64, or int64.
    mass, tolerance
        Mass of the shard, and how far the two numbers may be apart.
    host
        Of how many matrices the reference was compared with the CPU's: ``all``, ``none``, or a
        text such as ``8 of 512``.
    """

    contribution: np.ndarray
    reference: np.ndarray
    mass: float
    tolerance: float
    host: str = "none"

    @classmethod
    def of(cls, total: np.ndarray, tolerance: float) -> "ShardWitness":
        """The numbers of a shard's forms, see `ShardForms` and :func:`product_bound`.

        Raises
        ------
        WrongProduct
            Where products and factors disagree by more than all single products may.
        """
        one, other, mass = parts_of(total)
        if not gap(one, other) <= tolerance:
            raise WrongProduct(
                "the products of the shard do not come to what their factors do, by "
                f"{gap(one, other) / (tolerance or 1):.3g} times the tolerance; suspect the device "
                "and try another"
            )
        return cls(one, other, mass, tolerance)

    def to_json(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "contribution": number_to_json(self.contribution),
            "reference": number_to_json(self.reference),
            "mass": self.mass,
            "tolerance": self.tolerance,
            "host": self.host,
            "seed": SEED,
        }


def number_to_json(number: np.ndarray) -> Any:
    """A number as JSON has it: complex ones are ``[re, im]``."""
    parts = number.tolist()
    return parts[0] if len(parts) == 1 else parts


def number_from_json(said: Any, dtype: str) -> np.ndarray:
    """A number that :func:`number_to_json` has written, of products of a dtype.

    Raises
    ------
    ValueError
        Where it is no such number, or not finite.
    """
    parts = said if type(said) is list else [said]
    integer = "int" in dtype
    kinds = (int,) if integer else (int, float)
    try:
        # Without NumPy: there may be a hundred thousand receipts. A bool is no int here.
        right = all(type(x) in kinds and math.isfinite(x) for x in parts)
        if not right or len(parts) != (2 if "complex" in dtype else 1):
            raise ValueError(f"{short(said)} is no finite number of {dtype}")
        return np.array(parts, "int64" if integer else "float64")
    except OverflowError as error:
        raise ValueError(f"{short(said)}: {error}") from None


def read_reference(receipt: CopyReceipt, problem: Problem, factors: str) -> np.ndarray | None:
    """The reference in the receipt of a copy; None where there is none, or of other weights.

    Parameters
    ----------
    factors
        Digest of what is multiplied beside the matrices themselves. A copy outlives a change of
        `product` or B, its number does not.

    Raises
    ------
    ValueError
        Where what stands there is damaged.
    """
    own = receipt.witness
    if own is None or own.seed != SEED or own.factors != factors:
        return None
    return number_from_json(own.reference, problem.product_dtype)


def read(receipt: ProductReceipt, problem: Problem) -> ShardWitness | str:
    """The witness in the receipt of a product, or why there is none.

    Raises
    ------
    IntegrityError
        Where what stands there is damaged.
    """
    if receipt.witness is None:
        return receipt.no_witness or "its receipt is of an older version"
    if receipt.witness.seed != SEED:
        return f"its receipt has other weights (seed {short(receipt.witness.seed)})"
    return parse(receipt.witness, problem)


def parse(witness: Witness, problem: Problem) -> ShardWitness:
    """The account that a witness states, as :func:`read`."""
    try:
        one = number_from_json(witness.contribution, problem.product_dtype)
        other = number_from_json(witness.reference, problem.product_dtype)
    except ValueError as error:
        raise IntegrityError(f"its receipt has a damaged witness ({error!r})") from None
    return ShardWitness(one, other, witness.mass, witness.tolerance, witness.host)
