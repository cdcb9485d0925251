"""Which shards of a plan are still to be computed: those without a whole product of this plan.

Standard library only, and few calls to the disk a shard: it looks at every shard of a large plan
before a run says its first word.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardwise.planfile import Plan
from shardwise.units import human_bytes

NO_PRODUCTS = "have no products yet"

_SIZE = re.compile(rb'"file": {[^{}]*"bytes": (\d{1,19})\b')
"""The size of the product, in a receipt as `receipts.write` leaves it.

To read 100,000 receipts as JSON takes twice as long as everything else here.
"""


@dataclass(frozen=True)
class Standing:
    """How far the products of a plan are.

    ``missing`` are ids in the plan's order. ``newest`` is the shard whose receipt was written last,
    of those that are whole, or None where none is.
    """

    missing: list[str]
    newest: str | None


def missing(plan: Plan, meanwhile: Callable[[], object] = lambda: None) -> list[str]:
    """The shards, in the plan's order, whose product or receipt is not whole under this plan.

    ``meanwhile`` is called at each shard, as many of them on a slow disk take minutes.
    """
    return standing(plan, meanwhile).missing


def is_whole(plan: Plan, shard: str) -> bool:
    """Whether a shard has a whole product and receipt of this plan."""
    path = os.path.splitext(plan.results.product(shard))[0]
    return _written(path, plan.shards[shard].fingerprint) is not None


def standing(plan: Plan, meanwhile: Callable[[], object] = lambda: None) -> Standing:
    """Look at the receipt of every shard, and at the size of its product.

    The elements of a product, and the rest of its receipt, are left to ledger and reduce.
    """
    folder = str(plan.results.product("").parent)
    lacking, newest, latest = [], None, 0
    for shard, row in plan.shards.items():
        meanwhile()
        written = _written(f"{folder}/{shard}", row.fingerprint)
        if written is None:
            lacking.append(shard)
        elif written > latest:
            newest, latest = shard, written
    return Standing(lacking, newest)


def _written(path: str, fingerprint: str) -> int | None:
    """When the receipt of a whole product was written (nanoseconds); None where it is not whole.

    Parameters
    ----------
    path
        Of the product and its receipt, without what follows the dot.
    """
    try:
        text, written = _text(f"{path}.json")
        whole = is_of(text, fingerprint) and fits(text, os.stat(f"{path}.npy").st_size)
    except OSError:
        return None
    return written if whole else None


def is_of(text: bytes, fingerprint: str) -> bool:
    """Whether the text of a receipt is all there, and of the plan that has this fingerprint."""
    return f'"fingerprint": "{fingerprint}"'.encode() in text and text.rstrip().endswith(b"}")


def fits(text: bytes, size: int) -> bool:
    """Whether a product of so many bytes is the one that the text of a receipt speaks of."""
    said = _SIZE.search(text)
    return said is not None and size == int(said[1])


def _text(path: str) -> tuple[bytes, int]:
    """A small file, and when it was written; Python's own files take twice as long to open.

    To open a pipe waits for nobody, and what is in it is no receipt.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        return os.read(descriptor, found.st_size), found.st_mtime_ns
    finally:
        os.close(descriptor)


def describe(plan: Plan, shards: Sequence[str], why: str = NO_PRODUCTS) -> str:
    """What is still to be computed, for the log and the dry run.

    Parameters
    ----------
    shards
        The ids that are missing.
    why
        What is said of them.
    """
    if not shards:
        return f"all {len(plan.shards)} shards have their products"
    read, written = amounts(plan, shards)
    device = max(plan.shards[shard].device_memory for shard in shards)
    words = [
        f"{len(shards)} of {len(plan.shards)} shards {why}",
        f"{human_bytes(read)} to read and {human_bytes(written)} to write",
    ]
    words += [f"{human_bytes(device)} of device memory each on a GPU"] if device else []
    return "; ".join(words)


def amounts(plan: Plan, shards: Sequence[str]) -> tuple[int, int]:
    """Bytes that computing some shards reads, of A and of B, and bytes that it writes."""
    problem, rows = plan.problem, [plan.shards[shard] for shard in shards]
    factors = len(rows) if problem.shared_right else sum(row.stop - row.start for row in rows)
    read = sum(row.bytes for row in rows) + factors * problem.right_bytes
    return read, sum(row.product_bytes for row in rows)
