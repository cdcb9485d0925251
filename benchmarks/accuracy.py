"""The error of sums that cancel: ours beside the plain loop and NumPy's, against ``math.fsum``.

Prints the table of docs/sums.md, the same on each run. The condition of a sum is Σ|v| / |Σv|.
"""

import math
from collections.abc import Callable

import harness
import numpy as np

CONDITIONS = (1e0, 1e8, 1e16, 1e24, 1e32)
DTYPES = ("float32", "float64")
TERMS = 10**5


def stack(condition: float, dtype: str, terms: int = TERMS, seed: int = 0) -> np.ndarray:
    """Numbers ``(terms, 1)`` whose sum has about this condition, in a random order.

    Half of them lie between 1 and 2. The others are pairs v and -v of all sizes, evenly in the
    exponent, so that large numbers hide small ones at every scale, as in section 6 of T. Ogita,
    S. M. Rump and S. Oishi, "Accurate Sum and Dot Product", SIAM J. Sci. Comput. 26(6), 2005. There
    the cancelling part corrects what was summed; pairs make the sum known without a wide format.
    """
    random = np.random.default_rng(seed)
    rest = 1 + random.random(terms // 2)
    sizes = condition ** random.random(terms // 4)
    sizes *= (condition - 1) * rest.sum() / (2 * sizes.sum())
    pairs = sizes.astype(dtype)
    numbers = np.concatenate([rest.astype(dtype), pairs, -pairs])
    return random.permutation(numbers)[:, np.newaxis]


def ours(numbers: np.ndarray) -> float:
    """The sum by the tree."""
    from shardwise.numerics.tree import TreeSum

    total = TreeSum(np, (1,), numbers.dtype.name)
    total.add(numbers, 0)
    return float(total.value()[0])


def plain_loop(numbers: np.ndarray) -> float:
    """Each array added in double precision, in order."""
    total = np.zeros(1)
    for array in numbers:
        total += array
    return float(total[0])


def numpy_axis(numbers: np.ndarray) -> float:
    """NumPy over the first axis of a stack of two columns, as of any stack: in order."""
    return float(np.repeat(numbers, 2, axis=1).sum(axis=0, dtype="float64")[0])


def numpy_pairwise(numbers: np.ndarray) -> float:
    """NumPy along a contiguous axis: in blocks, and these pairwise."""
    return float(np.sum(numbers[:, 0], dtype="float64"))


PEERS: dict[str, Callable[[np.ndarray], float]] = {
    "shardwise": ours,
    "`acc += m`": plain_loop,
    "`sum(axis=0)`": numpy_axis,
    "`sum`, contiguous": numpy_pairwise,
}


def main() -> None:
    """Print the table."""
    options = harness.parser(__doc__.splitlines()[0]).parse_args()
    table = harness.Table("accuracy", ["dtype", "condition", *PEERS], options.json)
    terms = 1000 if options.tiny else TERMS
    for dtype in DTYPES:
        for wanted in CONDITIONS:
            numbers = stack(wanted, dtype, terms)
            exact = math.fsum(numbers[:, 0].tolist())
            condition = math.fsum(np.abs(numbers[:, 0]).tolist()) / abs(exact)
            errors = {name: abs(peer(numbers) - exact) / abs(exact) for name, peer in PEERS.items()}
            cells = [f"{error:.0e}" if error else "0" for error in errors.values()]
            table.row([dtype, f"{condition:.0e}", *cells], {"errors": errors})
    table.end()


if __name__ == "__main__":
    main()
