"""Measures Freivalds' check: the honest products that it refuses, and the wrong ones that it sees.

Prints the tables of docs/internals/proofs.md. On a CPU: ``--numpy --counts 20000 500 4 --dims 16
128 1024``. ``kernels.py`` prints the cost of the check, ``shard_jobs.py`` that within whole jobs.
"""

import argparse
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import cells
import harness
import numpy as np

VISITS = 200  # batches, each of a different cell, that share the wanted number of products
FACTORS = {f"{f:g} ×": f for f in (0.5, 0.9, 1.0, 1.1, 2.0)}  # errors of one element, in tolerances
TILE = 32
ELEMENTS = 2**24  # of a batch of wrong products
MOST = 16  # such batches
KINDS = ("element lost", "row lost", "tile lost", "swapped", "transposed", "less precise")


class Batch:
    """Honest products with their factors, checked all at once or in groups."""

    def __init__(
        self, xp: Any, cell: cells.Cell, count: int, seed: int, group: int | None = None
    ) -> None:
        self.left, self.right = cells.factors(xp, cell, count, seed)
        self.product = cells.products(xp, cell, self.left, self.right)
        group = group or min(count, cell.problem(count).proof_matrices)
        self._checker = cells.checker(xp, cell, seed, group)

    def ratio(self, product: Any = None) -> Any:
        """The residuals of the products, or of others in their place, in units of the tolerance."""
        product = self.product if product is None else product
        with np.errstate(all="ignore"):
            return self._checker.check(self.left, self.right, product)

    def finite(self, xp: Any) -> Any:
        """Which matrices have finite factors and a finite product: all others prove nothing."""
        stacks = [x for x in (self.left, self.right, self.product) if x is not None]
        return xp.stack([xp.isfinite(stack).all(axis=(1, 2)) for stack in stacks]).all(axis=0)


def try_honest(
    xp: Any, name: str, size: str, wanted: int, group: int | None = None
) -> dict[str, list[float]]:
    """Check honest products of one arithmetic and one class of sizes; ratios by kind of numbers."""
    found: dict[str, list[float]] = defaultdict(list)
    for number in range(2 * VISITS):  # if all are finite, the first half is enough
        cell = cells.draw(name, size, number)
        made = Batch(xp, cell, -(-wanted // VISITS), number, group)
        found[cell.kind] += made.ratio()[made.finite(xp)].tolist()
        if sum(map(len, found.values())) >= wanted:
            break
    return found


def alarms(xp: Any, options: argparse.Namespace) -> None:
    """The table of honest products."""
    harness.heading("arithmetic", "size", "tried", "false alarms", "largest ratio")
    for (i, size), name in itertools.product(enumerate(cells.SIZES), options.only):
        # On NumPy large integer matrices take minutes, and there is no tf32 to test.
        skipped = xp is np and ("tf32" in name or (i and name in cells.INTEGERS))
        if options.counts[i] and not skipped:
            ratios = np.concatenate([*try_honest(xp, name, size, options.counts[i]).values()])
            harness.row(name, size, len(ratios), int((~(ratios <= 1)).sum()), float(ratios.max()))


def damaged(
    xp: Any, cell: cells.Cell, made: Batch, tolerance: Any, where: tuple[Any, Any, Any]
) -> Iterator[tuple[Any, Any]]:
    """Damage the products of a batch in each way; yields what is wrong, and all products.

    The element ``where`` of each is off by a multiple of its tolerance, or has one bit flipped (if
    it is complex, in the real part). Lost means set to 0.
    """

    def changed(place: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
        wrong = made.product.copy()
        wrong[place] = change(wrong[place])
        return wrong

    for name, factor in FACTORS.items():
        error = (factor * tolerance).astype(made.product.dtype)
        yield name, changed(where, error.__add__)
    tile = slice(None), slice(TILE), slice(TILE)
    for name, place in {"element": where, "row": where[:2], "tile": tile}.items():
        yield f"{name} lost", changed(place, xp.zeros_like)
    yield "swapped", xp.roll(made.product, 1, axis=0)
    yield "transposed", xp.ascontiguousarray(made.product.swapaxes(1, 2))
    if (wrong := less_precise(xp, cell, made.left)) is not None:
        yield "less precise", wrong
    parts = 2 if made.product.dtype.kind == "c" else 1
    n, i, j = where
    for bit in range(np.finfo(cell.dtype).bits):
        wrong = made.product.copy()
        bits = wrong.view(f"uint{np.finfo(cell.dtype).bits}")
        bits[n, i, j * parts] ^= bits.dtype.type(1 << bit)
        yield bit, wrong


def less_precise(xp: Any, cell: cells.Cell, left: Any) -> Any:
    """Products of double precision in single; of single in tf32, or from factors cut to 11 bits."""
    if lower := {"float64": "float32", "complex128": "complex64"}.get(cell.arithmetic):
        other = replace(cell, arithmetic=lower)
        return cells.products(xp, other, left.astype(lower)).astype(cell.dtype)
    if cell.arithmetic not in ("float32", "complex64"):
        return None
    if xp is not np and cell.dtype == "float32":
        return cells.products(xp, replace(cell, arithmetic="tf32"), left)
    bits = left.view("uint32") & np.uint32(0xFFFFE000)
    return cells.products(xp, cell, bits.view(cell.dtype))


def bounds(xp: Any, cell: cells.Cell, left: Any, where: tuple[Any, Any, Any]) -> Any:
    """The tolerance ``(n,)`` of one element of each product A @ A, if its dtype gets a closer look.

    For other dtypes it is the tolerance of the whole row.
    """
    from shardwise.numerics.tolerances import CLOSER_LOOK, product_tolerance

    d, (n, i, j), close = cell.left[1], where, cell.dtype in CLOSER_LOOK
    left = left.astype("complex128")
    moduli = xp.abs(left.real) + xp.abs(left.imag)
    others = moduli[n, :, j] if close else moduli.sum(axis=2)
    relative, absolute = product_tolerance(d, 1 if close else d, cell.dtype, cell.compute)
    return relative * (moduli[n, i] * others).sum(axis=1) + absolute


def detect(xp: Any, name: str, dim: int, count: int) -> tuple[dict[Any, list[bool]], float]:
    """Try every damage on products of one arithmetic and size, each product in its own group.

    Returns, by damage, whether the check saw each one; and the tolerance over a typical element.
    """
    cell, random = cells.square(name, dim), np.random.default_rng(dim)
    seen = defaultdict(list)
    each = max(2, min(count, ELEMENTS // dim**2))
    for seed in range(-(-count // each)):
        made = Batch(xp, cell, each, seed, group=1)
        where = xp.arange(each), *(xp.asarray(random.integers(dim, size=each)) for _ in range(2))
        tolerance = bounds(xp, cell, made.left, where)
        for kind, wrong in damaged(xp, cell, made, tolerance, where):
            seen[kind] += (~(made.ratio(wrong) <= 1)).tolist()
    typical = xp.sqrt((xp.abs(made.product.astype("complex128")) ** 2).mean())
    return seen, float(xp.median(tolerance) / typical)


def percent(seen: dict[Any, list[bool]], key: Any) -> str | None:
    """The percentage that was seen, to five significant digits; None if none was tried."""
    return f"{100 * np.mean(seen[key]):.5g} %" if key in seen else None


def detection(xp: Any, options: argparse.Namespace) -> None:
    """The table of wrong products."""
    harness.heading(
        "arithmetic", "d", "tried", *FACTORS, "tolerance / typical element",
        *KINDS, "bits always seen", "sometimes", "never",
    )  # fmt: skip
    names = [name for name in options.only if name in cells.FLOATS]
    for name, dim in itertools.product(names, options.dims):
        seen, size = detect(xp, name, dim, min(options.wrong, MOST * ELEMENTS // dim**2))
        steps, kinds = ([percent(seen, key) for key in keys] for keys in (FACTORS, KINDS))
        bits = {bit: float(np.mean(seen[bit])) for bit in range(64) if bit in seen}
        lists = [
            ", ".join(str(bit) for bit, own in bits.items() if (own == 1) + (own > 0) == wanted)
            for wanted in (2, 1, 0)
        ]
        harness.row(name, dim, len(seen["1 ×"]), *steps, size, *kinds, *lists)


def main() -> None:
    """Print the tables."""
    tiny = {"counts": [100, 0, 0], "dims": [16, 48], "wrong": 16, "numpy": True}
    defaults = {"counts": [100_000, 4000, 50], "dims": [16, 128, 1024, 4096], "wrong": 1000}
    only = [*cells.FLOATS, *cells.INTEGERS]
    options = harness.options(__doc__, tiny, **defaults, only=only, numpy=False)
    xp = harness.array_module(options.numpy)
    harness.say(f"Freivalds' check, {harness.machine(xp)}")
    alarms(xp, options)
    detection(xp, options)


if __name__ == "__main__":
    main()
