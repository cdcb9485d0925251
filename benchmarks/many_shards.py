"""What follows the shards where there are 100,000 of them: ledger, reduce and verify.

Prints a table: seconds and CPU seconds of each, as whole processes, in turn. The products are tiny
and all alike, so files and receipts take the time, not bytes. They are made here: the first shard
is computed, and its product goes to all, each with a receipt of its own.
"""

import os
import sys

import harness
import numpy as np

sys.path.insert(0, str(harness.REPO))

from tests import factories


def main() -> None:
    """Time all in turn and print the table."""
    parser = harness.parser(__doc__)
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    harness.add_folder(parser)
    options = parser.parse_args()
    shards, rounds = (20, 1) if options.tiny else (options.shards, options.rounds)
    with harness.working_folder(options) as folder:
        stack = np.broadcast_to(np.array([[1.0, 2.0], [3.0, 5.0]]), (shards, 2, 2))
        plan = factories.plan(folder, stack, shards=shards, materialize=False)
        factories.repeated(plan)
        stages = {
            "ledger": ("ledger", "--plan", plan.results.plan),
            "reduce, 2 ranks": ("reduce", "--plan", plan.results.plan, "--ranks", "2"),
            "verify": ("verify", plan.results.root, "--threads", "2"),
        }
        os.sync()  # else the first stage waits for all of them
        turns = [
            [harness.cost(factories.command(*words))[:2] for words in stages.values()]
            for _ in range(rounds)
        ]
    table = harness.Table(["after the shards", "shards", "seconds", "CPU seconds"])
    found = np.median(turns, axis=0)
    for stage, row in zip(stages, found, strict=True):
        table.row([stage, shards, *row.tolist()])
    table.row(["together", shards, *found.sum(axis=0).tolist()])
    table.end()


if __name__ == "__main__":
    main()
