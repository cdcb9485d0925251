"""Freivalds' check measured: honest products that it refuses, and wrong ones that it sees.

Prints the tables of docs/verification.md. On a GPU, in less than four minutes:
``python3 benchmarks/proof.py --minutes 3.5``. Without one: ``--numpy --minutes 6 --counts 20000 500
4``. ``kernels.py`` prints the cost, of whole jobs ``shard_jobs.py``.
"""

import argparse
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import harness
import honest
import numpy as np

CLASSES = {"small": "d ≤ 128", "middle": "d ≤ 1024", "large": "d = 4096"}
VISITS = 400  # batches that the wanted number of products is divided into
SHARES = {"alarms": 0.6, "detection": 0.4}  # of the time
FACTORS = (0.5, 0.9, 1.0, 1.1, 2.0)  # of a tolerance, by which one element is wrong
UNITS = {"row": "tolerance", "element": "tolerance of the element"}
TILE = 32
LARGEST_INT64_ON_NUMPY = 256  # integers have no BLAS there


class Honest:
    """What is found of honest products of one arithmetic."""

    def __init__(self) -> None:
        self.tried: dict[str, int] = defaultdict(int)
        self.alarms = 0
        self.worst: dict[str, tuple[float, str]] = {}
        self.by_kind: dict[str, float] = {}

    def take(self, size: str, cell: honest.Cell, ratio: np.ndarray) -> None:
        """Count the residuals of one batch."""
        self.tried[size] += len(ratio)
        self.alarms += int((~(ratio <= 1.0)).sum())
        if not len(ratio):
            return
        top = float(ratio.max())
        self.worst[size] = max(self.worst.get(size, (0.0, "")), (top, cell.label))
        if min(cell.problem(1).factor_shapes[0]) >= TILE:
            self.by_kind[cell.kind] = max(self.by_kind.get(cell.kind, 0.0), top)


def feasible(xp: Any, cell: honest.Cell) -> bool:
    """Whether a product of it is a matter of seconds."""
    slow = xp is np and cell.problem(1).compute_dtype == "int64"
    return not slow or max(cell.left) <= LARGEST_INT64_ON_NUMPY


def try_honest(
    xp: Any, found: Honest, name: str, size: str, wanted: int, budget: harness.Budget,
    group: int | None = None,
) -> None:  # fmt: skip
    """Check honest products of one arithmetic and one class of sizes, until enough or too late."""
    cells = [c for c in honest.cells(name, size, seed=1) if feasible(xp, c)]
    if not cells or not wanted:
        return
    each = -(-wanted // VISITS)
    for seed in honest.rounds(0, budget):
        cell = cells[seed % len(cells)]
        made = honest.batch(xp, cell, honest.matrices(xp, cell, each), seed, group)
        ratio = made.ratio()[honest.finite(xp, made)]
        found.take(size, cell, ratio if xp is np else xp.asnumpy(ratio))
        if found.tried[size] >= wanted:
            return


def alarms(xp: Any, options: argparse.Namespace, names: list[str]) -> None:
    """The tables of honest products."""
    budget = harness.Budget(options.minutes * SHARES["alarms"])
    headings = ["arithmetic", *(f"{text}: tried" for text in CLASSES.values()), "false alarms",
                *(f"{text}: largest ratio" for text in CLASSES.values()), "largest at"]  # fmt: skip
    table = harness.Table("false alarms", headings, options.json)
    everything = {name: Honest() for name in names}
    jobs = [
        (n, size, name) for n, size in zip(options.counts, CLASSES, strict=True) for name in names
    ]
    for i, (wanted, size, name) in enumerate(jobs):  # the dearest come last
        share = harness.Budget(budget.left / 60 / (len(jobs) - i))
        if share.left:
            try_honest(xp, everything[name], name, size, wanted, share)
    for name, found in everything.items():
        worst = [found.worst.get(size, (None, ""))[0] for size in CLASSES]
        tried = [found.tried[size] for size in CLASSES]
        _, place = max(found.worst.values(), default=(0.0, ""))
        figures = {"alarms": found.alarms, "tried": tried, "worst": worst}
        table.row([name, *tried, found.alarms, *worst, place], figures)
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
        self._seen: dict[Any, int] = defaultdict(int)
        self._tried: dict[Any, int] = defaultdict(int)

    def take(self, key: Any, ratio: Any) -> None:
        """Count a batch of residuals."""
        self._seen[key] += int((~(ratio <= 1.0)).sum())
        self._tried[key] += len(ratio)

    def tried(self) -> int:
        """The fewest tried of any."""
        return min(self._tried.values(), default=0)

    def rate(self, key: Any) -> float | None:
        """The part that was seen; None where nothing was tried."""
        return self._seen[key] / self._tried[key] if self._tried[key] else None

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


def runs(numbers: list[int]) -> str:
    """Whole numbers in order, as ``0–3, 7``."""
    found: list[list[int]] = []
    for n in numbers:
        if found and n == found[-1][-1] + 1:
            found[-1][1:] = [n]
        else:
            found.append([n])
    return ", ".join("–".join(map(str, run)) for run in found) or harness.NOTHING


def bit_row(rates: Rates, item_bits: int) -> Iterator[str]:
    """Which bits are always, sometimes and never seen."""
    for wanted in (lambda r: r == 1, lambda r: 0 < r < 1, lambda r: r == 0):
        yield runs([b for b in range(item_bits) if wanted(rates.rate(b))])


def detection(xp: Any, options: argparse.Namespace, names: list[str]) -> None:
    """The tables of wrong products."""
    budget = harness.Budget(options.minutes * SHARES["detection"])
    found, jobs = {}, list(itertools.product(names, options.dims))
    for i, (name, dim) in enumerate(jobs):
        share = harness.Budget(budget.left / 60 / (len(jobs) - i))
        found[name, dim] = detect(xp, name, dim, options.wrong, share)
    for unit, text in UNITS.items():
        headings = ["arithmetic", "d", "tried", *(f"{f:g} × {text}" for f in FACTORS),
                    f"{text} / typical element"]  # fmt: skip
        name_of = "one wrong element" + (", closely" if unit == "element" else "")
        table = harness.Table(name_of, headings, options.json)
        for (name, dim), (elements, _, _, sizes) in found.items():
            if unit in sizes:
                cells = [elements.percent((unit, factor)) for factor in FACTORS]
                table.row([name, dim, elements.tried(), *cells, harness.median(sizes[unit])])
        table.end()
    table = harness.Table("wrong products", ["arithmetic", "d", "tried", *KINDS], options.json)
    for (name, dim), (_, _, kinds, _) in found.items():
        table.row([name, dim, kinds.tried(), *(kinds.percent(kind) for kind in KINDS)])
    table.end()
    headings = ["arithmetic", "d", "tried of each", "always seen", "sometimes", "never"]
    table = harness.Table("flipped bits", headings, options.json)
    for (name, dim), (_, bits, _, _) in found.items():
        if bits.tried():
            kind = np.finfo(honest.square(name, dim).dtype)
            table.row([name, dim, bits.tried(), *bit_row(bits, kind.bits)])
    table.end()


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = harness.parser(__doc__.splitlines()[0])
    parser.add_argument("--numpy", action="store_true", help="on NumPy, also where there is a GPU")
    parser.add_argument(
        "--counts", type=int, nargs=3, default=[10**6, 10**4, 10**3],
        help="honest products of each arithmetic, up to d = 128, 1024 and 4096, while time is left",
    )  # fmt: skip
    parser.add_argument("--wrong", type=int, default=1000, help="wrong products of each kind")
    parser.add_argument("--dims", type=int, nargs="*", default=[16, 128, 1024, 4096])
    parser.add_argument("--only", nargs="+", default=[*honest.FLOATS, *honest.INTEGERS])
    return parser


def main() -> None:
    """Print the tables."""
    options = arguments().parse_args()
    if options.tiny:
        options.counts, options.dims, options.wrong = [100, 0, 0], [16, 48], 16
    xp = harness.array_module(options.tiny or options.numpy)
    harness.say(f"Freivalds' check, {harness.device_name(xp)}, {harness.machine()}")
    if any(options.counts):
        # NumPy has no tf32: honest products would prove nothing there, wrong ones still do.
        alarms(xp, options, [x for x in options.only if xp is not np or "tf32" not in x])
    floats = [name for name in options.only if name in honest.FLOATS]
    if options.dims:
        detection(xp, options, floats)


if __name__ == "__main__":
    main()
