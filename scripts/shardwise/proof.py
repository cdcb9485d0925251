"""Freivalds' check: is ``C = A @ B``, in O(d²) work instead of O(d³).

R. Freivalds, "Probabilistic machines can use less running time", IFIP Congress 1977. The tolerance
follows N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd edition, chapter 3: it
bounds the rounding of an honest product computed in any order, so an honest product never fails.

``C r`` is compared with ``A (B r)`` for a few vectors r, all but one of them random, next to the
same product of moduli, ``|A| (|B| 1)``, to which rounding is relative. So every matrix is read once
for each time it stands in ``A``, ``B`` or ``C``. Sums are taken in float64 (complex128). The
modulus of a complex number is ``|re| + |im|`` throughout: never below the true one, and cheap.

The last of the vectors is no random one: it holds the fixed weights r of the end-to-end proof
(witness.py). What the check finds for it is weighed with ``l``, and left for whoever adds it up.

In half and single precision the tolerance of a large product is wide: what the worst rounding of a
whole row may come to is more than a wrong element is. But rounding is hardly ever the worst, and a
wrong row stands out long before. So of each group of products the row that stands out most gets a
closer look: it is computed again in double precision and compared element by element.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.witness import weights

VECTORS = 4
"""Vectors a product is checked with: random ±1, each of which misses a wrong product with at most
1/2, and last the weights of the end-to-end proof."""

TF32_FLOOR = float(np.finfo("float32").tiny)
"""Below this, rounding to the 11 bits of tf32 is no longer relative: moduli count as this much."""

# Which stored factor meets the vectors first and second, and whether it is transposed then.
_STEPS = {
    "A @ A": (("left", False), ("left", False)),
    "A.T @ A": (("left", False), ("left", True)),
    "A @ A.T": (("left", True), ("left", False)),
    "A @ B": (("right", False), ("left", False)),
}
CLOSER_LOOK = ("float16", "float32", "complex64")
"""Stored dtypes of which one row of each group of products is computed again. In double precision
what the tolerance leaves unseen is of no interest, and integers have none."""

_TINY = float(np.finfo("float64").tiny)
_BLOCK = 2**15
"""Elements that NumPy widens at once: they stay in a core's cache."""


def vectors(seed: int, length: int, integer: bool) -> np.ndarray:
    """Random vectors as columns, shape ``(length, VECTORS)``.

    ±1 for floating point; any int64 for integers, whose check is exact modulo 2⁶⁴. The last column
    does not depend on the seed: it is the r of :func:`witness.weights`, of modulus 1 at most.
    """
    random, fixed = np.random.default_rng(seed), weights("r", length, integer)[:, np.newaxis]
    shape = (length, VECTORS - 1)
    if integer:
        free = random.integers(-(2**63), 2**63 - 1, shape, dtype=np.int64, endpoint=True)
    else:
        free = 1.0 - 2.0 * random.integers(0, 2, shape)
    return np.concatenate([free, fixed], axis=1)


def tolerance(k: int, p: int, stored: str, compute: str) -> tuple[float, float]:
    """Bound of ``|C r - A (B r)|`` for an honest C, as ``(relative, absolute)``.

    The bound of row i is ``relative * (|A| |B| 1)_i + absolute``. An inner product of length n
    computed with unit roundoff u, in any order, is off by at most ``n u`` times the same product of
    moduli, for every n (C.-P. Jeannerod and S. M. Rump, "Improved error bounds for inner products
    in floating-point arithmetic", SIAM J. Matrix Anal. Appl. 34(2), 2013; with fused operations
    too). The older ``n u / (1 - n u)`` is negative from n = 1 / u on, which sums of millions of
    small matrices reach. Three such errors meet: the product itself in ``compute`` (and its
    rounding to ``stored``), and the two sides of the check in double precision. The real part of a
    complex inner product of length n is a real one of length 2 n, and so is the imaginary part;
    with moduli ``|re| + |im|`` both errors together are at most ``2 n u`` times the product of
    moduli. Underflow, or a device that flushes subnormal numbers, adds at most the smallest normal
    number an operation.

    The moduli of r are at most 1, those of the last vector as well. Its products with subnormal
    elements of B are rounded, by 2⁻¹⁰⁷⁵ at most, and A may be large. So ``|B| 1`` counts as more by
    the smallest normal number for each element of a row: times ``relative`` that covers it.

    Tensor cores multiply float16 and tf32 exactly, but add otherwise than IEEE 754 has it: they
    align a block of b ≥ 4 products and the running sum to the largest of them and cut off what is
    below its last bit (Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor
    cores", PeerJ Computer Science 7:e330, 2021). Each of b + 1 terms and the result loses less than
    2⁻²³ of the product of moduli: ``(b + 2) / b · 2⁻²³ ≤ 1.5 · 2⁻²³`` for each of the b elements.
    What is cut off makes no sum larger, so these losses just add up. So u is 2⁻²² for them,
    wherever they may have been used: for float16, and for ``tf32``.

    ``tf32`` takes both factors rounded to 11 significant bits, perhaps by truncation: each is off
    by less than ``t = 2⁻¹⁰`` of itself, their product by ``2 t + t²``. For subnormal numbers that
    holds with moduli raised to :data:`TF32_FLOOR`, as :class:`Checker` does.

    With ``p = 1`` it is the bound of a single element ``c_ij``, whatever p is: that element is the
    product of row i with a B of one column, r is 1, and what it is compared with is one inner
    product in double precision. Its moduli are ``(|A| |B|)_ij``, on average 1 / p of the row's.

    Parameters
    ----------
    k, p
        Length of the inner products, and number of columns of the product.
    stored
        Name of the dtype of factors and products.
    compute
        Name of the dtype in which products were accumulated; or ``tf32``, or ``tensor`` for
        float32 sums of float16 products.
    """
    parts = 2 if stored.startswith("complex") else 1
    short = 2.0**-10 if compute == "tf32" else 0.0
    tensor_cores = compute in ("tf32", "tensor") or stored == "float16"
    in_product = np.finfo("float32" if compute in ("tf32", "tensor") else compute)
    in_store = np.finfo(stored)
    own = parts * k * (2.0**-22 if tensor_cores else float(in_product.eps) / 2)
    own += (2 * short + short**2) * (1 + own)
    if in_store.bits < in_product.bits or short:
        own = own * (1 + float(in_store.eps) / 2) + float(in_store.eps) / 2
    unit = float(np.finfo("float64").eps) / 2
    check = (parts * k + 2 * p) * unit
    # 1 % covers the products of these small numbers and the rounding of the moduli themselves.
    relative = 1.01 * (own + check)
    absolute = p * (2 * parts * k * float(in_product.tiny) + float(in_store.smallest_subnormal))
    return relative, max(absolute, _TINY)


class Checker:
    """Checks stacks of products of one kind, with the same vectors and scratch memory every time.

    On cupy it launches on the current stream and waits for nothing. One stream at a time may use
    a checker: its calls share their scratch memory.

    Parameters
    ----------
    xp
        ``numpy`` or ``cupy``.
    product
        ``A @ A``, ``A.T @ A``, ``A @ A.T`` or ``A @ B``.
    left, right
        Shapes of one stored A and one stored B; None where B is made from A.
    dtype, compute
        Names of the dtype of the stacks, and of the one in which products were accumulated:
        ``float32`` for float16; ``tf32`` is known too.
    seed
        Of :func:`vectors`.
    group
        Matrices checked at once; a call with more checks them group by group. On a GPU each takes
        about 40 bytes (complex: 72) for every row or column of A and of the product.
    together
        Where the products of a call come added up, as one matrix in the dtype that they were
        accumulated in: the most of them. Sums of the check that leave the range of float64 prove
        nothing then. 0: each by itself.

    Attributes
    ----------
    bound
        Relative and absolute :func:`tolerance`; 0 for integers.
    forms
        Of the last check, for `witness.Tally`: a row for each ratio. Not finite where the sums of
        the check left the range of float64.
    """

    def __init__(
        self,
        xp: Any,
        product: str,
        left: tuple[int, int],
        right: tuple[int, int] | None,
        dtype: str,
        compute: str,
        seed: int,
        group: int,
        together: int = 0,
    ) -> None:
        self._xp, self._steps = xp, _STEPS[product]
        self._group, self._together = group, together
        columns = (right or left)[1] if product != "A @ A.T" else left[0]
        inner = left[0] if product == "A.T @ A" else left[1]
        integer = np.dtype(dtype).kind in "iu"
        rows = left[1] if product == "A.T @ A" else left[0]
        signs, own = vectors(seed, columns, integer), weights("l", rows, integer)
        self._engine: Any
        self.bound, self.forms = (0.0, 0.0), None
        if integer:
            self._engine = _Whole(xp, signs, own)
            return
        stored = dtype
        if together and dtype == "float16":
            stored, compute = "float32", "tensor"
        # A sum of n products is rounded as one product whose inner length is n times as large.
        self.bound = tolerance(inner * max(1, together), columns, stored, compute)
        floor = TF32_FLOOR if compute == "tf32" else 0.0
        close = None
        if dtype in CLOSER_LOOK and not together:
            close = tolerance(inner, 1, stored, compute)
        if xp is np:
            self._engine = _Host(
                signs, own, self.bound, close, dtype, floor, group if together else 0
            )
        else:
            self._engine = _Device(
                xp, signs, own, self.bound, close, dtype, floor, group, inner,
                stored if together else None,
            )  # fmt: skip

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


def _groups(
    steps: list[tuple[Any, bool]], count: int, group: int
) -> Iterator[tuple[int, list[tuple[Any, bool]]]]:
    """The steps of so many matrices at a time; one that serves all is in each."""
    for low in range(0, count, group):
        yield (
            low,
            [(s if len(s) == 1 else s[low : low + group], transposed) for s, transposed in steps],
        )


def _together(steps: list[tuple[Any, bool]], group: int, taken: Callable) -> Any:
    """What is taken of the steps of all groups, added up over the matrices."""
    total = None
    for _, part in _groups(steps, max(len(stack) for stack, _ in steps), group):
        own = [x.sum(axis=0, keepdims=True) for x in taken(part)]
        total = own if total is None else [x + y for x, y in zip(total, own, strict=True)]
    return total


def _forms(xp: Any, left: Any, own: Any, found: Any, size: Any) -> Any:
    """What `witness.Tally` adds up, from C r, A (B r) and their moduli, each ``(n, rows, .)``."""
    pair = [(x[..., -1] * left).sum(axis=-1)[:, np.newaxis] for x in (own, found)]
    if size is not None:
        moduli = size.reshape(len(own), -1)
        pair = [x.view("float64") for x in pair] + [moduli @ xp.abs(left)[:, np.newaxis]]
    return xp.concatenate(pair, axis=1)


def _as_stack(block: Any) -> Any:
    return block if block.ndim == 3 else block[np.newaxis]


class _Whole:
    """Integers: exact modulo 2⁶⁴, without any tolerance."""

    def __init__(self, xp: Any, signs: np.ndarray, left: np.ndarray) -> None:
        self._xp, self._signs, self._left = xp, xp.asarray(signs), xp.asarray(left)

    def check(self, steps: list[tuple[Any, bool]], product: Any) -> tuple[Any, Any]:
        found = self._signs
        for stack, transposed in steps:
            found = (stack.transpose(0, 2, 1) if transposed else stack) @ found
        own = product @ self._signs
        ratio = self._xp.where((own != found).any(axis=(1, 2)), np.inf, 0.0)
        return ratio, _forms(self._xp, self._left, own, found, None)


class _Host:
    """Floating point on NumPy, a cache-sized block at a time."""

    def __init__(
        self,
        signs: np.ndarray,
        left: np.ndarray,
        bound: tuple[float, float],
        close: tuple[float, float] | None,
        dtype: str,
        floor: float,
        together: int,
    ) -> None:
        self._wide = np.dtype("complex128" if "complex" in dtype else "float64")
        self._parts = self._wide.itemsize // 8
        self._signs = signs.astype(self._wide)[np.newaxis]
        self._ones, self._left = np.ones((1, len(signs), 1)), left
        (self._relative, self._absolute), self._close = bound, close
        # What an element of the moduli counts for at least, see `tolerance`.
        self._least = _TINY * self._parts if dtype == self._wide else 0.0
        self._floor, self._together = floor, together

    def check(self, steps: list[tuple[Any, bool]], product: Any) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(all="ignore"):
            ratio, forms = self._ratio(steps, product, np.ones(len(product)))
            again = np.flatnonzero(~np.isfinite(ratio))
            if again.size and product.dtype == self._wide and not self._together:
                ratio[again] = self._scaled(steps, product, again)
        return ratio, forms

    def _scaled(self, steps: list[tuple[Any, bool]], product: Any, which: Any) -> np.ndarray:
        """The ratios where sums of the check, not the product, left the range of float64.

        Powers of two, so without rounding, make the moduli of the factors about 1.
        """
        several = len(which) < len(product)
        stacks = [stack[which] if several and len(stack) > 1 else stack for stack, _ in steps]
        roots = [_root(self.largest(stack)) for stack in stacks]
        scaled = [_Scaled(stack, root) for stack, root in zip(stacks, roots, strict=True)]
        root = np.broadcast_to(roots[0] * roots[1], (len(which), 1, 1))
        turned = [(stack, steps[i][1]) for i, stack in enumerate(scaled)]
        own = _Scaled(product[which] if several else product, root)
        return self._ratio(turned, own, (root * root).ravel())[0]

    def _ratio(
        self, steps: list[tuple[Any, bool]], product: Any, scale: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        if self._together:
            found, size = _together(steps, self._together, self._taken)
        else:
            found, size = self._taken(steps)
        own = self._times(product, False, self._signs, None)[0]
        gap = self._moduli(own - found)
        absolute = np.maximum(self._absolute * scale, _TINY)[:, np.newaxis, np.newaxis]
        bound = self._relative * size + absolute
        # Within an infinite bound nothing is proven.
        rows = np.where(np.isfinite(bound), gap / bound, np.nan).max(axis=2)
        ratio = rows.max(axis=1)
        if self._close:
            i, row = np.unravel_index(np.argmax(rows), rows.shape)  # NaN is the largest
            ratio[i] = np.maximum(ratio[i], self._closer_look(steps, product, int(i), int(row)))
        return ratio, _forms(np, self._left, own, found, size)

    def _closer_look(
        self, steps: list[tuple[Any, bool]], product: Any, i: int, row: int
    ) -> np.floating:
        """How far the elements of one row of product i are off, in units of their tolerance."""
        (first, turned), (second, across) = steps
        a = (second[i, :, row] if across else second[i, row]).astype(self._wide).reshape(1, -1, 1)
        size = np.maximum(np.abs(a.view("float64")), self._floor).sum(axis=2, keepdims=True)
        b = first if len(first) == 1 else first[i : i + 1]
        found, size = self._times(b, not turned, a, size)
        gap = self._moduli(product[i, row].astype(self._wide) - found[0, :, 0])
        relative, absolute = self._close
        return (gap / (relative * size[0, :, 0] + absolute)).max()

    def _moduli(self, numbers: np.ndarray) -> np.ndarray:
        return np.abs(numbers.view("float64")).reshape(*numbers.shape, self._parts).sum(axis=-1)

    def _taken(self, steps: list[tuple[Any, bool]]) -> tuple[np.ndarray, np.ndarray]:
        """The vectors after all steps, and the moduli."""
        found, size = self._signs, self._ones
        for stack, transposed in steps:
            found, size = self._times(stack, transposed, found, size)
        return found, size

    def _times(
        self, stack: Any, transposed: bool, v: np.ndarray, size: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Products of a stack with vectors, and of its moduli with ``size`` unless that is None."""
        n, rows, cols = stack.shape
        shape = (n, cols if transposed else rows)
        found, moduli = np.zeros((*shape, v.shape[2]), self._wide), np.zeros((*shape, 1))
        if size is not None:  # once for the real and once for the imaginary parts
            size = np.repeat(size, 1 if transposed else self._parts, axis=1)
        for part, band in _blocks(n, rows, cols):
            block = stack[part, band].astype(self._wide, copy=False)
            which = part if len(v) > 1 else slice(None)
            if transposed:
                found[part] += block.transpose(0, 2, 1) @ v[which, band]
            else:
                found[part, band] = block @ v[which]
            if size is None:
                continue
            own = np.abs(block.view("float64"))
            if self._floor:
                np.maximum(own, self._floor, out=own)
            if transposed:
                both = own.transpose(0, 2, 1) @ size[which, band]
                moduli[part] += both.reshape(len(both), cols, -1).sum(axis=2, keepdims=True)
            else:
                moduli[part, band] = own @ size[which]
        return found, moduli + (rows if transposed else cols) * self._least

    def largest(self, stack: Any) -> np.ndarray:
        n, rows, cols = stack.shape
        largest = np.zeros(n)
        for part, band in _blocks(n, rows, cols):
            block = np.abs(stack[part, band].astype(self._wide, copy=False).view("float64"))
            np.maximum(largest[part], block.max(axis=(1, 2)), out=largest[part])
        return largest


def _blocks(n: int, rows: int, cols: int) -> Iterator[tuple[slice, slice]]:
    """Cut a stack into blocks of about ``_BLOCK`` elements: matrices, and rows of each."""
    matrices, band = max(1, _BLOCK // (rows * cols)), max(1, min(rows, _BLOCK // cols))
    for first in range(0, n, matrices):
        for low in range(0, rows, band):
            yield slice(first, first + matrices), slice(low, low + band)


def _root(largest: np.ndarray) -> np.ndarray:
    """A power of two that, applied twice, makes moduli about 1; shape ``(n, 1, 1)``."""
    _, exponent = np.frexp(largest)
    exponent = np.where(np.isfinite(largest), np.clip(exponent, -1000, 1000), 0)
    return np.exp2(-(exponent // 2))[:, np.newaxis, np.newaxis]


class _Scaled:
    """A stack times the squares of powers of two, a block at a time: a copy might not fit."""

    def __init__(self, stack: np.ndarray, root: np.ndarray) -> None:
        self._stack, self._root = stack, root
        self.shape = stack.shape

    def __len__(self) -> int:
        return len(self._stack)

    def __getitem__(self, place: tuple[slice, slice]) -> np.ndarray:
        root = self._root[place[0]]
        return self._stack[place] * root * root  # the whole factor may be out of range


class _Device:
    """Floating point on a GPU, by the kernels of ``proof.cu``.

    float16, float32 and complex64 cannot leave the range of float64, in which all sums are taken:
    moduli are below 2¹²⁸, and sums over k and p below k p 2²⁵⁶; the smallest products are 2⁻²⁹⁸.
    float64 and complex128 can, though their product does not: the matrices where that happened
    are checked once more, scaled. The kernels decide which, so that no one waits for the device.
    """

    _BLOCK = 256  # threads of a block, as in proof.cu

    def __init__(
        self,
        xp: Any,
        signs: np.ndarray,
        left: np.ndarray,
        bound: tuple[float, float],
        close: tuple[float, float] | None,
        dtype: str,
        floor: float,
        group: int,
        inner: int,
        summed: str | None,
    ) -> None:
        self._xp = xp
        (self._relative, self._absolute), self._close = bound, close
        own = _module(xp, dtype, floor)
        names = ("rows_times", "columns_times", "largest", "mark", "take_row", "compare_row")
        self._kernels = {name: own.get_function(name) for name in names}
        other = own if summed in (None, dtype) else _module(xp, summed, floor)
        self._kernels["compare"] = other.get_function("compare")
        self._together = group if summed else 0
        # As many threads as run at once at the registers these kernels take.
        attributes = xp.cuda.Device().attributes
        self._threads = attributes["MultiProcessorCount"] * 2 * self._BLOCK
        self._parts = 2 if "complex" in dtype else 1
        self._planes = VECTORS * self._parts + 1
        self._signs = xp.asarray(self._as_planes(signs))
        # Lengths are even, and what lies past a vector stays 0: kernels read pairs.
        lengths = [n + n % 2 for n in (inner, len(left))]
        self._found = [xp.zeros((group, self._planes, n)) for n in lengths]
        self._own = xp.zeros((group, self._parts, lengths[1]))  # C r of the last vector
        padded = np.zeros((lengths[1], 2))
        padded[: len(left)] = np.stack([left, np.abs(left)], axis=1)
        self._left = xp.asarray(padded)
        # Of the closer look: B times a row of A, and which matrix and row.
        self._row, self._where = xp.zeros_like(self._signs), xp.zeros(2, xp.int64)
        self._again = xp.zeros(group + 1, xp.int32)
        self._tops: list[Any] = []
        if dtype in ("float64", "complex128") and not self._together:
            self._tops = [xp.zeros(group), xp.zeros(group)]

    def _as_planes(self, columns: np.ndarray) -> np.ndarray:
        """Vectors as the kernels read them: real parts, imaginary parts (0), moduli (1)."""
        length = len(columns)
        planes = np.zeros((1, self._planes, length + length % 2))
        planes[0, :VECTORS, :length] = columns.T
        planes[0, -1, :length] = 1.0
        return planes

    def check(self, steps: list[tuple[Any, bool]], product: Any) -> tuple[Any, Any]:
        n = len(product)
        ratio, spots = self._xp.zeros(n), self._xp.zeros(n, "uint64") if self._close else 0
        forms = self._forms(self._round(steps, product, ratio, [0, 0], None, spots), n)
        if self._close:
            self._closer_look(steps, product, ratio, spots.max())
        if self._tops:
            self._again.fill(0)
            self._launch("mark", -(-n // self._BLOCK), n, ratio, self._again)
            tops = [
                self._largest(stack, top, self._marked(stack, n))
                for (stack, _), top in zip(steps, self._tops, strict=True)
            ]
            self._round(steps, product, ratio, tops, self._again, 0)
        return ratio, forms

    def _closer_look(
        self, steps: list[tuple[Any, bool]], product: Any, ratio: Any, spot: Any
    ) -> None:
        """Raise the ratio of the matrix of the worst row to that of its worst element."""
        (first, turned), (second, across) = steps
        _, rows, cols, *distances = _geometry(product)
        inner = second.shape[1 if across else 2]
        a = self._found[0][:1]  # of use no more
        self._launch(
            "take_row",
            -(-inner // self._BLOCK),
            *(second, inner, *_geometry(second)[3:], np.int32(across), rows, spot),
            *(a, a.shape[2], self._where),
        )
        where = self._where if len(first) > 1 else 0
        self._times(first[:1], not turned, a, self._row, 0, 0, where)
        self._launch(
            "compare_row",
            -(-cols // self._BLOCK),
            *(product, cols, *distances, self._row, self._row.shape[2], *self._close),
            *(self._where, ratio),
        )

    def _forms(self, v: Any, n: int) -> Any:
        """The forms of n products, of the planes of A (B r) and of what `compare` has left."""
        weighed, own = (
            (x.reshape(-1, x.shape[2]) @ self._left).reshape(n, -1, 2) for x in (v, self._own[:n])
        )
        reference, mass = weighed[:, VECTORS - 1 : -1 : VECTORS, 0], weighed[:, -1:, 1]
        return self._xp.concatenate([own[:, :, 0], reference, mass], axis=1)

    def _round(
        self, steps: list[tuple[Any, bool]], product: Any, ratio: Any, tops: list[Any], only: Any,
        spot: Any,
    ) -> Any:  # fmt: skip
        """Raise the ratios; with ``tops`` scaled, and with ``only`` of the marked matrices.

        What names the worst row of all is left in ``spot``, unless that is 0.

        Returns
        -------
        array
            The planes of A (B r), ``(n, planes, rows)``.
        """
        if self._together:
            (v,) = _together(steps, self._together, lambda part: [self._taken(part, tops, only)])
        else:
            v = self._taken(steps, tops, only)
        size, blocks = self._teams(product)
        self._launch(
            "compare",
            blocks,
            *(product, *_geometry(product)),
            *(self._signs, self._signs.shape[2], v, v.shape[2], self._relative, self._absolute),
            *(np.int32(size), tops[1], tops[0], int(len(steps[0][0]) > 1)),
            *(0 if only is None else only, ratio, self._own if only is None else 0, spot),
        )
        return v

    def _taken(self, steps: list[tuple[Any, bool]], tops: list[Any], only: Any) -> Any:
        """The planes of vectors and moduli after all steps, in scratch memory."""
        v, n = self._signs, max(len(stack) for stack, _ in steps)
        for (stack, transposed), found, top in zip(steps, self._found, tops, strict=True):
            marked = 0 if only is None else self._marked(stack, n)
            self._times(stack, transposed, v, found[: len(stack)], top, marked)
            v = found[: len(stack)]
        return v

    def _marked(self, stack: Any, n: int) -> Any:
        """One mark for each matrix of a stack; of one that serves all, whether any is marked."""
        return self._again if len(stack) == n else self._again[n:]

    def _times(
        self, stack: Any, transposed: bool, v: Any, found: Any, top: Any, only: Any, where: Any = 0
    ) -> None:
        matrix_of_v = v.shape[1] * v.shape[2] if len(v) > 1 else 0
        operands = (stack, *_geometry(stack), v, v.shape[2], matrix_of_v, found, found.shape[2])
        if not transposed:
            size, blocks = self._teams(stack)
            self._launch("rows_times", blocks, *operands, np.int32(size), top, only, where)
            return
        n, rows, cols = stack.shape
        threads = n * -(-cols * self._parts // 2)  # of a chunk of rows; each takes two numbers
        chunk = max(32, -(-rows // max(1, self._threads // threads)))
        chunk += chunk % 2
        chunks = -(-rows // chunk)
        if chunks > 1:
            found.fill(0)
        blocks = -(-threads * chunks // self._BLOCK)
        self._launch("columns_times", blocks, *operands, chunk, top, only, where)

    def largest(self, stack: Any) -> Any:
        return self._largest(stack, self._xp.zeros(len(stack)), 0)

    def _largest(self, stack: Any, top: Any, only: Any) -> Any:
        top.fill(0)
        size, blocks = self._teams(stack)
        self._launch("largest", blocks, stack, *_geometry(stack), np.int32(size), only, top)
        return top

    def _teams(self, stack: Any) -> tuple[int, int]:
        """Threads that share some rows of a matrix, and blocks of threads.

        Few, so that little is spent on adding up what they found, but enough to fill the device.
        """
        n, rows, cols = stack.shape
        teams = n * -(-rows // (4 // self._parts))
        size = 4
        while size < 32 and 64 * size <= cols:
            size *= 2
        while size < self._BLOCK and 2 * size * teams <= self._threads and 16 * size <= cols:
            size *= 2
        return size, -(-teams * size // self._BLOCK)

    def _launch(self, kernel: str, blocks: int, *arguments: Any) -> None:
        self._kernels[kernel]((blocks,), (self._BLOCK,), arguments)


def _module(xp: Any, dtype: str, floor: float) -> Any:
    """The kernels of ``proof.cu`` for a dtype; cupy keeps what it has compiled."""
    options = ("-std=c++17", f"-D{dtype.upper()}", *(("-DTF32",) if floor else ()))
    return xp.RawModule(code=Path(__file__).with_name("proof.cu").read_text(), options=options)


def _geometry(stack: Any) -> tuple[int, int, int, int, int]:
    """Matrices, rows, columns, and the distances of rows and of matrices, in elements."""
    item = stack.dtype.itemsize
    matrix, row, element = stack.strides
    if stack.shape[2] > 1 and element != item:
        raise ValueError(f"elements of a row lie {element} bytes apart; they must be adjacent")
    return (*stack.shape, row // item, matrix // item)
