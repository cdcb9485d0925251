"""What other configs left in a results folder: found by its name, removed if a run wrote it."""

import os
import stat
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from shardwise.errors import IntegrityError, TryAgain, one_line, some
from shardwise.files import small
from shardwise.files.paths import Results
from shardwise.plan import plan as plans
from shardwise.records import failures, locks, others, receipts
from shardwise.records.receipts import CopyReceipt, ProductReceipt
from shardwise.units import count, human_bytes


def clean(results: Results, remove: bool) -> str:
    """What the present plan does not name, a line per folder; it may be removed."""
    small.refuse_unmarked(results)
    small.refuse_links(results)
    with _alone(results) if remove else nullcontext():
        found = {path: _is_ours(results, path) for path in others.find(plans.load(results.plan))}
        ours = [path for path, own in found.items() if own]
        tops = defaultdict[Path, list[Path]](list)
        for path in ours:
            tops[path.parent.relative_to(results.root)].append(path)
        lines = [f"  {top}: {_amount(own)}" for top, own in tops.items()]
        if left := [str(path.relative_to(results.root)) for path, own in found.items() if not own]:
            lines.append(f"  these stay, as no run is known to have written them: {some(left)}")
        total = f"{results.root}: {_amount(ours)} of other configs"
        lines.append(f"{total} removed" if remove else f"{total}; --yes removes them")
        for path in sorted(ours if remove else [], key=lambda path: path.suffix != ".npy"):
            path.unlink(missing_ok=True)  # a receipt after its product: alone it is still known
    return "".join(f"{one_line(line)}\n" for line in lines)


@contextmanager
def _alone(results: Results) -> Iterator[None]:
    """While no run and no stage works here."""
    busy = f"a run works in {results.root}; let it finish, or end it, then clean"
    with locks.take_lock(results.running, busy):
        if locks.is_job_locked(results.living):
            raise TryAgain(busy)
        yield


def _amount(paths: list[Path]) -> str:
    return f"{count(len(paths), 'file')}, {human_bytes(sum(os.lstat(p).st_size for p in paths))}"


def _is_ours(results: Results, path: Path) -> bool:
    """Whether something shows that a run of ours has written a file."""
    kinds = {results.products.name: ProductReceipt, results.shards.name: CopyReceipt}
    top = path.relative_to(results.root).parts[0]
    if not stat.S_ISREG(os.lstat(path).st_mode):
        return False
    try:
        if kind := kinds.get(top):
            receipt = receipts.read(path.with_suffix(".json"), kind)
            if path.suffix == ".npy":
                receipts.check_file(path, receipt.file)
            return f"{receipt.shard}-{receipt.key}" == path.stem
        if top == results.failed.name:
            failure = failures.read(path)
            return failure is not None and failure.name == path.stem
        return bool(path.suffix) or not path.stat().st_size  # a marker is empty
    except IntegrityError:
        return False
