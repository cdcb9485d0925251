"""Freivalds' check: is ``C = A @ B``, in O(d²) work instead of O(d³).

R. Freivalds, "Probabilistic machines can use less running time", IFIP Congress 1977. ``C r`` is
compared with ``A (B r)`` for a few vectors, beside ``|A| (|B| 1)``, to which rounding is relative;
sums are taken in float64. In half and single precision the row of each group that stands out most
is computed again and compared element by element. docs/verification.md has the mathematics.
"""

from typing import Any

import numpy as np

from shardwise.numerics.freivalds_device import _Device
from shardwise.numerics.freivalds_host import Step, Steps, _groups, _Host
from shardwise.numerics.tolerances import CheckSpec


class Checker:
    """Checks stacks of products of one kind, with the same vectors and scratch memory every time.

    On cupy it launches on the current stream and waits for nothing. One stream at a time may use
    a checker: its calls share their scratch memory.

    Attributes
    ----------
    bound
        Relative and absolute `tolerances.product_tolerance`; 0 for integers.
    forms
        Of the last check, for `end_to_end.ShardForms`: a column for each ratio. Not finite where
        they leave the range of float64.
    """

    def __init__(self, xp: Any, spec: CheckSpec) -> None:
        self._xp = xp
        # The right factor meets the vectors first.
        self._operands = spec.problem.operands[::-1]
        self._group = spec.group
        self.bound = spec.bound
        self.forms: Any = None
        self._dtype = "int64" if spec.integer else "float64"
        self._parts = 2 if spec.integer else 5 if "complex" in spec.problem.dtype else 3
        real: Any = _Host if xp is np else _Device
        self._engine: Any = _Whole(xp, spec) if spec.integer else real(xp, spec)

    def check(self, left: Any, right: Any, product: Any) -> Any:
        """How far each product is from the factors' own, in units of the tolerance, ``(n,)``.

        A and the products are C-contiguous stacks ``(n, rows, columns)`` as they are stored, B is
        another, one matrix ``(k, p)`` for all, or None. It is at most 1 for an honest product;
        above 1, or NaN, for a wrong one. Of floating-point numbers it is finite only where A, B and
        the product all are.
        """
        stacks = {"A": left, "B": None if right is None else _as_stack(right)}
        steps = [Step(stacks[name], *how) for name, *how in self._operands]
        n, group = len(product), self._group
        ratio, self.forms = self._xp.zeros(n), self._xp.empty((self._parts, n), self._dtype)
        for low, part in _groups(steps, n, group):
            of = slice(low, low + group)
            self._engine.check(part, product[of], ratio[of], self.forms[:, of])
        return ratio

    def largest(self, stack: Any) -> Any:
        """The largest modulus of each matrix of a stack, a device array ``(n,)`` of float64.

        Of complex numbers the larger of ``|re|`` and ``|im|``. NaN where a matrix has a NaN, else
        infinite where it has an infinity. Not for integers.
        """
        return self._engine.largest(_as_stack(stack))


def _as_stack(block: Any) -> Any:
    return block if block.ndim == 3 else block[np.newaxis]


class _Whole:
    """Integers: exact modulo 2⁶⁴, without any tolerance."""

    def __init__(self, xp: Any, spec: CheckSpec) -> None:
        self._xp = xp
        self._signs, self._left = (xp.asarray(x) for x in (spec.signs(), spec.left_weights()))
        self._column_sums = spec.problem.covariance

    def check(self, steps: Steps, product: Any, ratio: Any, forms: Any) -> None:
        expected, actual = self._signs, product @ self._signs
        for stack, turned, _ in steps:
            inner = expected
            expected = (stack.transpose(0, 2, 1) if turned else stack) @ expected
        if self._column_sums:
            below = inner.sum(axis=1, keepdims=True)
            expected = self._xp.concatenate([expected, below], axis=1)
        ratio[(actual != expected).any(axis=(1, 2))] = np.inf
        for row, vector in zip(forms, (actual, expected), strict=True):
            row[:] = (vector[..., -1] * self._left).sum(axis=-1)
