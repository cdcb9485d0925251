"""Freivalds' check measured: honest products that it refuses, and wrong ones that it sees.

Prints the tables of docs/internals/proofs.md. On a GPU, in less than four minutes:
``python3 benchmarks/proof.py --minutes 3.5``. Without one: ``--numpy --minutes 6 --counts 20000 500
4``. ``kernels.py`` prints the cost, of whole jobs ``shard_jobs.py``.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import harness
import honest
import numpy as np

CLASSES = {"small": "d ≤ 128", "middle": "d ≤ 1024", "large": "d = 4096"}
VISITS = 400  # batches that the wanted number of products is divided into
SHARES = {"alarms": 0.6, "detection": 0.4}  # of the time
FACTORS = (0.5, 0.9, 1.0, 1.1, 2.0)  # of a tolerance, by which one element is wrong
TILE = 32
LARGEST_INT64_ON_NUMPY = 256  # integers have no BLAS there


def try_honest(
    xp: Any, name: str, size: str, wanted: int, budget: harness.Budget, group: int | None = None
) -> dict[str, list[float]]:
    """Check honest products of one arithmetic and one class of sizes, until enough or too late.

    Returns
    -------
    dict
        The ratios by kind of numbers.
    """
    found: dict[str, list[float]] = defaultdict(list)
    cells = [cell for cell in honest.cells(name, size, seed=1) if feasible(xp, cell)]
    each = -(-wanted // VISITS)
    for seed in honest.rounds(0, budget) if cells and wanted else ():
        cell = cells[seed % len(cells)]
        made = honest.batch(xp, cell, honest.matrices(xp, cell, each), seed, group)
        found[cell.kind] += made.ratio()[honest.finite(xp, made)].tolist()
        if sum(map(len, found.values())) >= wanted:
            break
    return found


def feasible(xp: Any, cell: honest.Cell) -> bool:
    """Whether a product of it is a matter of seconds."""
    slow = xp is np and cell.problem(1).compute_dtype == "int64"
    return not slow or max(cell.left) <= LARGEST_INT64_ON_NUMPY


def alarms(xp: Any, options: argparse.Namespace, names: list[str]) -> None:
    """The table of honest products."""
    budget = harness.Budget(options.minutes * SHARES["alarms"])
    table = harness.Table(["arithmetic", "size", "tried", "false alarms", "largest ratio"])
    jobs = [(n, size, name) for n, size in zip(options.counts, CLASSES, strict=True)
            for name in names]  # fmt: skip
    for i, (wanted, size, name) in enumerate(jobs):  # the dearest come last
        share = harness.Budget(budget.left / 60 / (len(jobs) - i))
        found = try_honest(xp, name, size, wanted, share) if share.left else {}
        ratios = np.array([ratio for own in found.values() for ratio in own])
        if len(ratios):
            cells = len(ratios), int((~(ratios <= 1)).sum()), float(ratios.max())
            table.row([name, CLASSES[size], *cells])
    table.end()


# Wrong products. Each function takes the batch, the batch before and a random generator, and
# returns a stack like the products, or None where it has no meaning.


def element_lost(xp: Any, cell: Any, made: Any, before: Any, random: Any) -> Any:
    """One element is 0."""
    wrong, where = made.product.copy(), on_device(xp, places(made, random))
    wrong[where] = 0
    return wrong


def row_lost(xp: Any, cell: Any, made: Any, before: Any, random: Any) -> Any:
    """One row is 0."""
    wrong = made.product.copy()
    wrong[:, int(random.integers(wrong.shape[1]))] = 0
    return wrong


def tile_lost(xp: Any, cell: Any, made: Any, before: Any, random: Any) -> Any:
    """A tile of 32 × 32 is 0."""
    wrong = made.product.copy()
    wrong[tile(made, random)] = 0
    return wrong


def tile_of_another(xp: Any, cell: Any, made: Any, before: Any, random: Any) -> Any:
    """A tile of 32 × 32 is that of another product."""
    wrong, where = made.product.copy(), tile(made, random)
    wrong[where] = before.product[where]
    return wrong


def less_precise(xp: Any, cell: Any, made: Any, before: Any, random: Any) -> Any:
    """Double precision computed as single, single as tf32; on NumPy from factors cut to 11 bits."""
    dim = cell.left[0]
    lower = {"float64": "float32", "complex128": "complex64"}.get(cell.arithmetic)
    if lower:
        wrong, _ = honest.products(xp, honest.square(lower, dim), made.left.astype(lower), None)
        return wrong.astype(cell.dtype)
    if cell.arithmetic not in ("float32", "complex64"):
        return None
    if xp is not np and cell.dtype == "float32":
        return honest.products(xp, honest.square("tf32", dim), made.left, None)[0]
    bits = made.left.view("uint32") & np.uint32(0xFFFFE000)
    return honest.products(xp, cell, bits.view(cell.dtype), None)[0]


KINDS: dict[str, Callable[..., Any]] = {
    "element lost": element_lost,
    "row lost": row_lost,
    "tile lost": tile_lost,
    "tile of another": tile_of_another,
    "all zero": lambda xp, cell, made, *_: xp.zeros_like(made.product),
    "swapped matrix": lambda xp, cell, made, *_: xp.roll(made.product, 1, axis=0),
    "stale slab": lambda xp, cell, made, before, _: before.product,
    "transposed": lambda xp, cell, made, *_: xp.ascontiguousarray(made.product.swapaxes(1, 2)),
    "less precise": less_precise,
}


def places(made: honest.Batch, random: np.random.Generator) -> tuple[Any, Any, Any]:
    """One random element of each product, as indices."""
    n, rows, columns = made.product.shape
    return np.arange(n), random.integers(rows, size=n), random.integers(columns, size=n)


def on_device(xp: Any, where: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same indices for an array of the device."""
    return tuple(xp.asarray(index) for index in where)


def tile(made: honest.Batch, random: np.random.Generator) -> tuple[slice, slice, slice]:
    """A random tile of all products."""
    _, rows, columns = made.product.shape
    i, j = (int(random.integers(max(1, n - TILE + 1))) for n in (rows, columns))
    return slice(None), slice(i, i + TILE), slice(j, j + TILE)


class Rates:
    """How many wrong products were seen, of how many, by what was wrong."""

    def __init__(self) -> None:
        self._seen: dict[Any, list[bool]] = defaultdict(list)

    def take(self, key: Any, ratio: Any) -> None:
        """Count a batch of residuals."""
        self._seen[key] += (~(ratio <= 1.0)).tolist()

    def tried(self) -> int:
        """The fewest tried of any."""
        return min(map(len, self._seen.values()), default=0)

    def rate(self, key: Any) -> float | None:
        """The part that was seen; None where nothing was tried."""
        return float(np.mean(self._seen[key])) if key in self._seen else None

    def percent(self, key: Any) -> str | None:
        """The same for a table; never rounded to all or nothing."""
        rate = self.rate(key)
        if rate is None:
            return None
        text = f"{100 * rate:.3g}"
        return f"{'< ' if text == '100' and rate < 1 else ''}{text} %"


def bounds(xp: Any, made: honest.Batch, where: tuple[Any, ...]) -> dict[str, np.ndarray]:
    """The tolerance of a row of each product A @ A, and of an element of it; each ``(n,)``.

    Of an element only where rows get a closer look.
    """
    from shardwise.numerics.tolerances import CLOSER_LOOK, product_tolerance

    n, _, d = made.left.shape
    wide, stored = "complex128" if made.left.dtype.kind == "c" else "float64", made.left.dtype.name
    found = {"row": np.empty(n)}
    if stored in CLOSER_LOOK:
        found["element"] = np.empty(n)
    for i, row, column in zip(*where, strict=True):
        whole = made.left[int(i)].astype(wide)
        moduli = xp.abs(whole.real) + xp.abs(whole.imag)
        sizes = {"row": moduli.sum(axis=1), "element": moduli[:, int(column)]}
        for unit, own in found.items():
            width = d if unit == "row" else 1
            relative, absolute = product_tolerance(d, width, stored, made.compute)
            own[i] = relative * float(moduli[int(row)] @ sizes[unit]) + absolute
    return found


def try_elements(
    xp: Any, made: honest.Batch, rates: Rates, random: Any, sizes: dict[str, list[float]]
) -> None:
    """Wrong by multiples of the tolerances; and the tolerances over a typical element."""
    where = places(made, random)
    typical = float(xp.sqrt((xp.abs(made.product.astype("complex128")) ** 2).mean()))
    for unit, tolerances in bounds(xp, made, where).items():
        for factor in FACTORS:
            wrong = made.product.copy()
            wrong[on_device(xp, where)] += xp.asarray(factor * tolerances).astype(wrong.dtype)
            rates.take((unit, factor), made.ratio(wrong))
        sizes[unit].append(float(np.median(tolerances)) / typical)


def try_bits(xp: Any, made: honest.Batch, rates: Rates, random: Any) -> None:
    """Flip each bit of one element, of a complex one in its real part."""
    parts = 2 if made.product.dtype.kind == "c" else 1
    item = made.product.dtype.itemsize // parts
    n, i, j = on_device(xp, places(made, random))
    for bit in range(8 * item):
        wrong = made.product.copy()
        bits = wrong.view(f"uint{8 * item}")
        bits[n, i, j * parts] ^= bits.dtype.type(1 << bit)
        rates.take(bit, made.ratio(wrong))


def detect(
    xp: Any, name: str, dim: int, count: int, budget: harness.Budget
) -> tuple[Rates, Rates, Rates, dict[str, list[float]]]:
    """Everything wrong that a product of one arithmetic and size can be, counted.

    Each product is checked for itself, as if it were the only wrong one of its batch.
    """
    cell, random = honest.square(name, dim), np.random.default_rng(dim)
    elements, bits, kinds = Rates(), Rates(), Rates()
    sizes: dict[str, list[float]] = defaultdict(list)
    each = max(2, honest.matrices(xp, cell, min(count, 256)))
    before = honest.batch(xp, cell, each, 0)
    for seed in honest.rounds(1, budget):
        made = honest.batch(xp, cell, each, seed, group=1)
        try_elements(xp, made, elements, random, sizes)
        for kind, spoil in KINDS.items():
            wrong = spoil(xp, cell, made, before, random)
            if wrong is not None:
                kinds.take(kind, made.ratio(wrong))
        if dim <= 1024:
            try_bits(xp, made, bits, random)
        if elements.tried() >= count:
            break
        before = made
    return elements, bits, kinds, sizes


def detection(xp: Any, options: argparse.Namespace, names: list[str]) -> None:
    """The table of wrong products."""
    budget = harness.Budget(options.minutes * SHARES["detection"])
    jobs = [(name, dim) for name in names for dim in options.dims]
    headings = ["arithmetic", "d", "tried", *(f"{f:g} × the tolerance" for f in FACTORS)]
    headings += ["tolerance / typical element", *KINDS, "bits always seen", "sometimes", "never"]
    table = harness.Table(headings)
    for i, (name, dim) in enumerate(jobs):
        share = harness.Budget(budget.left / 60 / (len(jobs) - i))
        elements, bits, kinds, sizes = detect(xp, name, dim, options.wrong, share)
        unit = "element" if "element" in sizes else "row"
        cells = [elements.percent((unit, factor)) for factor in FACTORS]
        cells += [harness.median(sizes[unit]), *map(kinds.percent, KINDS)]
        seen = [bits.rate(bit) for bit in range(np.finfo(honest.square(name, dim).dtype).bits)]
        for wanted in (lambda r: r == 1, lambda r: r and r < 1, lambda r: r == 0):
            cells.append(", ".join(str(bit) for bit, rate in enumerate(seen) if wanted(rate)))
        table.row([name, dim, elements.tried(), *cells])
    table.end()


def main() -> None:
    """Print the tables."""
    parser = harness.parser(__doc__.splitlines()[0])
    parser.add_argument("--numpy", action="store_true", help="on NumPy, also where there is a GPU")
    parser.add_argument(
        "--counts", type=int, nargs=3, default=[10**6, 10**4, 10**3],
        help="honest products of each arithmetic, up to d = 128, 1024 and 4096, while time is left",
    )  # fmt: skip
    parser.add_argument("--wrong", type=int, default=1000, help="wrong products of each kind")
    parser.add_argument("--dims", type=int, nargs="*", default=[16, 128, 1024, 4096])
    parser.add_argument("--only", nargs="+", default=[*honest.FLOATS, *honest.INTEGERS])
    options = parser.parse_args()
    if options.tiny:
        options.counts, options.dims, options.wrong = [100, 0, 0], [16, 48], 16
    xp = harness.array_module(options.tiny or options.numpy)
    harness.say(f"Freivalds' check, {harness.device_name(xp)}, {harness.machine()}")
    # NumPy has no tf32: honest products would prove nothing there, wrong ones still do.
    alarms(xp, options, [name for name in options.only if xp is not np or "tf32" not in name])
    detection(xp, options, [name for name in options.only if name in honest.FLOATS])


if __name__ == "__main__":
    main()
