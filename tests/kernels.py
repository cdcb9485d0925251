"""Products by the engine's kernels, and their check: on NumPy, cupy and a stand-in for cupy."""

from typing import Any

import numpy as np
from shardwise.numerics import freivalds, gemm
from shardwise.plan.problem import Problem

from tests.factories import REFERENCES, wide

SEED = 5  # of the random vectors of a check


def to_host(xp: Any, array: Any) -> Any:
    """An array in host memory."""
    return array if xp is np else xp.asnumpy(array)


def on(xp: Any, *stacks: Any) -> list[Any]:
    """Stacks as arrays of ``xp``; what is None stays so."""
    return [None if x is None else xp.asarray(np.ascontiguousarray(x)) for x in stacks]


def modulus(array: Any) -> Any:
    """Moduli of the elements, for which the check takes |re| + |im|."""
    return np.abs(array.real) + np.abs(array.imag)


def exactly(product: str, left: Any, right: Any = None, xp: Any = np) -> list[Any]:
    """Products in double precision or int64, and the sums of the moduli of their terms."""
    pair = [wide(x) for x in (left, right)]
    moduli = [None if x is None else modulus(x) for x in pair]
    return [to_host(xp, REFERENCES[product](*on(xp, *of))) for of in (pair, moduli)]


def problem_of(product: str, left: Any, right: Any = None) -> Problem:
    """What is multiplied; ``right`` is a stack, one matrix for all, or None."""
    shape, shared = (None, False) if right is None else (right.shape[-2:], right.ndim == 2)
    return Problem(len(left), left.shape[1:], product, left.dtype.name, shape, shared)


def multiplied(
    xp: Any, product: str, left: Any, right: Any = None, precision: str = "ieee"
) -> tuple[Any, str]:
    """Products of a stack, in host memory, from full calls of the kernel; and its arithmetic."""
    problem = problem_of(product, left, right)
    run = gemm.kernel(xp, problem, precision)
    more = ((0, 0 if xp is np else -len(left) % problem.call_matrices), (0, 0), (0, 0))
    block, other = (
        x if x is None else xp.asarray(x if x.ndim == 2 else np.pad(x, more)) for x in (left, right)
    )
    out = xp.full((len(block), *problem.product_shape), 77, problem.product_dtype)
    with np.errstate(all="ignore"):
        run.multiply(block, other, out, len(left))
    return to_host(xp, out[: len(left)]), run.compute


def checker(
    xp: Any, product: str, left: Any, right: Any, compute: str, seed: int = SEED, group: int = 2
) -> freivalds.Checker:
    """The check of these products in groups; a group of two leaves one of three matrices over."""
    return freivalds.checker(xp, problem_of(product, left, right), compute, seed, group)
