"""Freivalds' check: is ``C = A @ B``, in O(d²) work instead of O(d³).

R. Freivalds, "Probabilistic machines can use less running time", IFIP Congress 1977. The tolerance
follows N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd edition, chapter 3: it
bounds the rounding of an honest product computed in any order, so an honest product never fails.

``C r`` is compared with ``A (B r)`` for a few vectors r, all but one of them random, next to the
same product of moduli, ``|A| (|B| 1)``, to which rounding is relative. So every matrix is read once
for each time it stands in ``A``, ``B`` or ``C``. Sums are taken in float64 (complex128). The
modulus of a complex number is ``|re| + |im|`` throughout: never below the true one, and cheap.

The last of the vectors is no random one: it holds the fixed weights r of the end-to-end proof
(end_to_end.py). What the check finds for it is weighed with ``l``, and left for whoever adds it up.

In half and single precision the tolerance of a large product is wide: what the worst rounding of a
whole row may come to is more than a wrong element is. But rounding is hardly ever the worst, and a
wrong row stands out long before. So of each group of products the row that stands out most gets a
closer look: it is computed again in double precision and compared element by element.
"""

from typing import Any

import numpy as np

from shardwise.numerics.freivalds_device import _Device
from shardwise.numerics.freivalds_host import _forms, _groups, _Host
from shardwise.numerics.tolerances import CheckSpec

# Which stored factor meets the vectors first and second, and whether it is transposed then.
_STEPS = {
    "A @ A": (("left", False), ("left", False)),
    "A.T @ A": (("left", False), ("left", True)),
    "A @ A.T": (("left", True), ("left", False)),
    "A @ B": (("right", False), ("left", False)),
}


class Checker:
    """Checks stacks of products of one kind, with the same vectors and scratch memory every time.

    On cupy it launches on the current stream and waits for nothing. One stream at a time may use
    a checker: its calls share their scratch memory.

    Parameters
    ----------
    xp
        ``numpy`` or ``cupy``.

    Attributes
    ----------
    bound
        Relative and absolute :func:`tolerance`; 0 for integers.
    forms
        Of the last check, for `reference.Tally`: a row for each ratio. Not finite where the sums of
        the check left the range of float64.
    """

    def __init__(self, xp: Any, spec: CheckSpec) -> None:
        self._xp, self._steps = xp, _STEPS[spec.product]
        self._group, self._together = spec.group, spec.together
        self.bound, self.forms = spec.bound, None
        self._engine: Any
        if spec.integer:
            self._engine = _Whole(xp, spec)
        else:
            self._engine = _Host(spec) if xp is np else _Device(xp, spec)

    def check(self, left: Any, right: Any, product: Any) -> Any:
        """How far each product is from the factors' own, in units of the tolerance.

        Parameters
        ----------
        left, product
            Stacks ``(n, rows, columns)``, A as it is stored, not transposed. Rows and matrices may
            lie apart (padding); the elements of a row may not.
        right
            A stack like them, or one matrix ``(k, p)`` for all, or None.

        Returns
        -------
        array of float64, shape ``(n,)``
            At most 1 for an honest product; above 1, or NaN, for a wrong one. Of floating-point
            numbers it is finite only where A, B and the product all are. For the product of each
            group that had a closer look it is the larger of what the two found.
        """
        stacks = {"left": left, "right": None if right is None else _as_stack(right)}
        steps = [(stacks[name], transposed) for name, transposed in self._steps]
        if self._together:
            ratio, self.forms = self._engine.check(steps, product)
            return ratio
        found = [
            self._engine.check(part, product[low : low + self._group])
            for low, part in _groups(steps, len(product), self._group)
        ]
        ratio, self.forms = (
            own[0] if len(own) == 1 else self._xp.concatenate(own)
            for own in zip(*found, strict=True)
        )
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
        self._xp, self._signs, self._left = (
            xp,
            xp.asarray(spec.signs()),
            xp.asarray(spec.left_weights()),
        )

    def check(self, steps: list[tuple[Any, bool]], product: Any) -> tuple[Any, Any]:
        found = self._signs
        for stack, transposed in steps:
            found = (stack.transpose(0, 2, 1) if transposed else stack) @ found
        own = product @ self._signs
        ratio = self._xp.where((own != found).any(axis=(1, 2)), np.inf, 0.0)
        return ratio, _forms(self._xp, self._left, own, found, None)
