"""Files of other configs in a results folder: found by name, removed if a run wrote them."""

import os
from contextlib import nullcontext
from pathlib import Path

from shardwise.errors import ShardwiseError, TryAgain, one_line, some
from shardwise.files import small
from shardwise.files.paths import Results
from shardwise.plan import plan as plans
from shardwise.records import failures, locks, receipts, store
from shardwise.records.receipts import CopyReceipt, ProductReceipt
from shardwise.units import count, human_bytes


def clean(results: Results, remove: bool) -> str:
    """Say what the present plan does not name; ``remove`` removes it.

    Raises TryAgain if a run or a stage works in the folder; no run begins while files are removed.
    """
    small.refuse_unmarked(results)
    small.refuse_links(results)
    busy = f"a run is working in {results.root}; let it finish, or end it, then clean again"
    with locks.take_lock(results.running, busy) if remove else nullcontext():
        if remove and locks.is_job_locked(results.living):
            raise TryAgain(busy)
        found = list(store.find_others(plans.load(results.plan)))
        ours = {path for path in found if _is_ours(results, path)}
        nbytes = sum(os.lstat(path).st_size for path in ours)
        amount = f"{count(len(ours), 'file')}, {human_bytes(nbytes)} of other configs or inputs"
        lines = [
            f"{results.root}: {amount}{' removed' if remove else '; to remove them, add --yes'}"
        ]
        if left := [str(p.relative_to(results.root)) for p in found if p not in ours]:
            lines.append(f"these stay, as no run is known to have written them: {some(left)}")
        # Receipts go last: they show who wrote a product.
        for path in sorted(ours if remove else (), key=lambda path: path.suffix == ".json"):
            path.unlink(missing_ok=True)
    return "".join(f"{one_line(line)}\n" for line in lines)


def _is_ours(results: Results, path: Path) -> bool:
    """Whether a regular file itself, or its receipt, shows that a run of ours has written it."""
    if path.is_symlink() or not path.is_file():
        return False
    kinds = {results.products.name: ProductReceipt, results.shards.name: CopyReceipt}
    try:
        if kind := kinds.get(path.relative_to(results.root).parts[0]):
            receipt = receipts.read(path.with_suffix(".json"), kind)
            if path.suffix == ".npy":
                receipts.check_file(path, receipt.file)
            return f"{receipt.shard}-{receipt.key}" == path.stem
        failure = failures.read(path)
        return failure is not None and failure.name == path.stem
    except (ShardwiseError, OSError):
        return False
