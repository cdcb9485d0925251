"""What follows the shards where there are 100,000 of them: ledger, reduce and verify.

Prints a table: seconds and CPU seconds of each, as whole processes, in turn. The products are tiny
and all alike, so files and receipts take the time, not bytes. They are made here: the first shard
is computed, and its product goes to all, each with a receipt of its own.
"""

import os
import sys
from typing import Any

import harness
import numpy as np

sys.path.insert(0, str(harness.REPO))

from tests import factories

STAGES = {
    "ledger": ("ledger", "--plan", "{plan}"),
    "reduce, 2 ranks": ("reduce", "--plan", "{plan}", "--ranks", "2"),
    "verify": ("verify", "{folder}", "--threads", "2"),
}


def seconds(stage: str, plan: Any) -> np.ndarray:
    """Wall time of a stage, which must succeed, and its CPU time."""
    script, *words = STAGES[stage]
    words = [word.format(plan=plan.results.plan, folder=plan.results.root) for word in words]
    found = harness.cost(factories.command(script, *words))
    return np.array([found.seconds, found.cpu_seconds])


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
        os.sync()  # else the first stage waits for all of them
        turns = [[seconds(stage, plan) for stage in STAGES] for _ in range(rounds)]
    header = ["after the shards", "shards", "seconds", "CPU seconds"]
    table = harness.Table("many shards", header, options.json)
    found = np.median(turns, axis=0)
    for stage, row in zip(STAGES, found, strict=True):
        table.row([stage, shards, *row.tolist()])
    table.row(["together", shards, *found.sum(axis=0).tolist()])
    table.end()


if __name__ == "__main__":
    main()
