"""The sum of float32 products on a GPU, products already there, in GB/s of products.

The tree beside ``+=`` of one product after the other, and ``sum(axis=0)`` of a batch.
"""

import itertools
from typing import Any

import harness
import numpy as np

BATCHES = ((4096, 4), (4096, 1), (1024, 64), (256, 1024), (32, 65536))
ROUNDS, CALLS = 5, 20


def ways(xp: Any, block: Any) -> dict[str, Any]:
    """The three ways to add a batch, each a call."""
    from shardwise.numerics.tree import TreeSum

    tree = TreeSum(xp, block.shape[1:], block.dtype.name)
    total, places = xp.zeros(block.shape[1:]), itertools.count(0, len(block))

    def one_by_one() -> None:
        for product in block[:64]:  # one launch each: a few tell the rate
            xp.add(total, product, out=total)

    return {
        "tree": lambda: tree.add(block, next(places)),
        "+=": one_by_one,
        "sum(axis=0)": lambda: xp.add(total, block.sum(axis=0, dtype="f8"), out=total),
    }


def main() -> None:
    """Print the table."""
    options = harness.parser(__doc__).parse_args()
    xp = harness.array_module(options.tiny)
    table = harness.Table("tree", ["d", "batch", "tree", "+=", "sum(axis=0)"], options.json)
    for dim, count in BATCHES:
        block = harness.normal(xp, (count, dim, dim), "float32")
        rates: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            for name, call in ways(xp, block).items():
                nbytes = block.nbytes if name != "+=" else block[:64].nbytes
                rates.setdefault(name, []).append(
                    nbytes / harness.seconds_of(xp, call, CALLS) / 1e9
                )
        table.row([dim, count, *(float(np.median(found)) for found in rates.values())])
    table.end()


if __name__ == "__main__":
    main()
