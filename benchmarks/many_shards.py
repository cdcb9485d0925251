"""What follows the shards where there are 100,000 of them: ledger, reduce and verify.

Prints a table: seconds of each, as whole processes, in turn. The products are tiny and all alike,
so files and receipts take the time, not bytes. They are made here: the first shard is computed, and
its product goes to all, each with a receipt of its own.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

REPO = Path(__file__).parents[1]
sys.path.insert(0, str(REPO / "scripts"))

STAGES = {
    "ledger": ("ledger", "--plan", "{plan}"),
    "reduce, 2 ranks": ("reduce", "--plan", "{plan}", "--ranks", "2"),
    "verify": ("verify", "{folder}", "--threads", "2"),
}


def make(folder: Path, shards: int) -> Any:
    """A plan of a stack of tiny matrices, all alike, with a shard for each."""
    from shardwise.plan import config, planner
    from shardwise.plan import plan as plans

    stack = folder / "stack.npy"
    np.save(stack, np.broadcast_to(np.array([[1.0, 2.0], [3.0, 5.0]]), (shards, 2, 2)))
    settings = {"input": str(stack), "results": str(folder / "results"), "shards": shards,
                "backend": "numpy", "materialize": False, "reduce": {"ranks": 2}}  # fmt: skip
    plan, sources = planner.make(config.load(settings))
    planner.write(plan, sources)
    return plans.load(plan.results.plan)


def repeat(plan: Any) -> None:
    """Give all shards the product of the first, which is computed."""
    from shardwise.files import small
    from shardwise.multiply import job

    first, *others = plan.shards.values()
    job.run_shard(plan, first.shard)
    product = plan.results.product(first.shard).read_bytes()
    receipt = json.loads(plan.results.receipt(first.shard).read_bytes())
    del receipt["digest"]
    for row in others:
        path = plan.results.product(row.shard)
        path.parent.mkdir(exist_ok=True)
        receipt |= {"shard": row.shard, "start": row.start, "stop": row.stop}
        receipt["file"]["name"], receipt["fingerprint"] = path.name, row.fingerprint
        path.write_bytes(product)
        body = json.dumps(receipt, indent=1).removesuffix("\n}").encode()
        plan.results.receipt(row.shard).write_bytes(small.with_digest(body))


def seconds(stage: str, plan: Any) -> float:
    """Wall time of a stage, which must succeed."""
    script, *words = STAGES[stage]
    words = [word.format(plan=plan.results.plan, folder=plan.results.root) for word in words]
    start = time.perf_counter()
    line = [sys.executable, str(REPO / "scripts" / f"{script}.py"), *words]
    subprocess.run(line, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    """Time all in turn and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to put, and leave, the files")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        plan = make(Path(name), options.shards)
        repeat(plan)
        rounds = [[seconds(stage, plan) for stage in STAGES] for _ in range(options.rounds)]
    sys.stdout.write(f"| {options.shards} tiny shards | seconds |\n|---|---|\n")
    for stage, found in zip(STAGES, zip(*rounds, strict=True), strict=True):
        sys.stdout.write(f"| {stage} | {statistics.median(found):.1f} |\n")
    total = statistics.median(map(sum, rounds))
    sys.stdout.write(f"| together | {total:.1f} |\n")


if __name__ == "__main__":
    main()
