"""List what other configs left in a results folder, and remove it with --yes.

It names what the plan in the folder does not: products, copies, receipts, failures, logs, markers.
A file stays if nothing shows that a run wrote it: a product or copy without a receipt that fits.
"""

import os
import stat
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from shardwise import cli
from shardwise.errors import IntegrityError, TryAgain, one_line
from shardwise.files import small
from shardwise.files.paths import Results
from shardwise.plan import config
from shardwise.plan import plan as plans
from shardwise.records import failures, locks, others, receipts
from shardwise.records.receipts import CopyReceipt, ProductReceipt
from shardwise.units import count, human_bytes

_MOST_NAMED = 20


def clean(words: list[str]) -> int:
    """List, or remove, what the present plan does not name."""
    cli.program = "shardwise clean"
    parser = cli.parser(__doc__)
    cli.add_results(parser)
    parser.add_argument("--yes", action="store_true", help="remove what is listed")
    options = parser.parse_args(words)
    results = Results(config.existing_folder(options.configfile, options.results))
    small.refuse_unmarked(results)
    small.refuse_links(results)
    with _alone(results) if options.yes else nullcontext():
        plan = plans.load(results.plan)
        reasons = {path: _foreign(results, path) for path in others.find(plan)}
        ours = [path for path, reason in reasons.items() if not reason]
        lines = _listed(results, reasons, ours)
        total = f"{results.root}: {_amount(ours)} of other configs"
        lines.append(f"{total} removed" if options.yes else f"{total}; --yes removes them")
        for path in sorted(ours if options.yes else [], key=lambda path: path.suffix != ".npy"):
            path.unlink(missing_ok=True)  # a receipt after its product: alone it is still known
    sys.stdout.write("".join(f"{one_line(line)}\n" for line in lines))
    return 0


@contextmanager
def _alone(results: Results) -> Iterator[None]:
    """While no run and no stage works here."""
    busy = f"a run works in {results.root}; let it finish, or end it, then clean"
    with locks.take_lock(results.running, busy):
        if locks.is_job_locked(results.living):
            raise TryAgain(busy)
        yield


def _listed(results: Results, reasons: dict[Path, str], ours: list[Path]) -> list[str]:
    """A line per folder with what would go, and the first files that stay."""
    tops = defaultdict[Path, list[Path]](list)
    for path in ours:
        tops[path.relative_to(results.root).parent].append(path)
    lines = [f"  {top}: {_amount(own)}" for top, own in tops.items()]
    left = [f"  {p.relative_to(results.root)}: {why}" for p, why in reasons.items() if why]
    if left:
        more = [f"  … and {len(left) - _MOST_NAMED} more"] * (len(left) > _MOST_NAMED)
        lines += ["Left, as no run is known to have written it:", *left[:_MOST_NAMED], *more]
    return lines


def _amount(paths: list[Path]) -> str:
    return f"{count(len(paths), 'file')}, {human_bytes(sum(os.lstat(p).st_size for p in paths))}"


def _foreign(results: Results, path: Path) -> str:
    """Why no run of ours is known to have written a file; empty if one has."""
    if not stat.S_ISREG(os.lstat(path).st_mode):
        return "is not a file"
    kinds = {results.products.name: ProductReceipt, results.shards.name: CopyReceipt}
    top = path.relative_to(results.root).parts[0]
    try:
        if kind := kinds.get(top):
            receipt = receipts.read(path.with_suffix(".json"), kind)
            if f"{receipt.shard}-{receipt.key}" != path.stem:
                return "its receipt is of another file"
            if path.suffix == ".npy":
                receipts.check_file(path, receipt.file)
        elif top == results.failed.name:
            failure = failures.read(path)
            return "" if failure and failure.name == path.stem else "is no failure of this name"
        elif not path.suffix and path.stat().st_size:
            return "is no marker: it is not empty"
    except IntegrityError as error:
        return str(error)
    return ""
