"""Which shards of a plan are still to be computed: those without a whole product of this plan.

A quick look beside the judge: standard library only, and few calls to the disk per shard, as it
looks at every shard of a large plan before a run says its first word. What it takes for whole in a
receipt, the judge takes, too; to that end it checks the receipt's own digest.
"""

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from shardwise.errors import IntegrityError
from shardwise.files import small
from shardwise.files.paths import place
from shardwise.plan.plan import Plan, Shard
from shardwise.records.groups import look_at
from shardwise.units import human_bytes

NO_PRODUCTS = "have no products yet"

_FILE = re.compile(rb'"file": {[^{}]*"bytes": (\d{1,19}),\s*"checksum": "([0-9a-f]{32})"')
"""Size and checksum of the product, in a receipt as `receipts.write` leaves it.

To read 100,000 receipts as JSON takes twice as long as everything else here.
"""


@dataclass(frozen=True)
class ProductScan:
    """How far the products of a plan are.

    ``missing`` are ids in the plan's order. ``newest`` is the shard whose receipt was written last,
    of those that are whole, or None if none is. ``checksum`` is that of the list of all whole
    shards, each with the checksum of its product, as `ledger.lists_products` compares it.
    """

    missing: list[str]
    newest: str | None
    checksum: str = ""


def list_missing(plan: Plan, meanwhile: Callable[[], object] = lambda: None) -> list[str]:
    """The shards, in the plan's order, whose product or receipt is not whole under this plan.

    ``meanwhile`` is called at each shard, as many of them on a slow disk take minutes.
    """
    return scan_products(plan, meanwhile).missing


def is_whole(plan: Plan, shard: str) -> bool:
    """Whether a shard has a whole product and receipt of this plan."""
    return _written(str(plan.results.products), plan.shards[shard]) is not None


def scan_products(plan: Plan, meanwhile: Callable[[], object] = lambda: None) -> ProductScan:
    """Look at the receipt of every shard, and at the size of its product.

    The header and the elements of a product are left to ledger and reduce.
    """
    folder = str(plan.results.products)
    lacking, newest, latest = [], None, 0
    checksum = hashlib.blake2b(digest_size=16)
    for row, product in look_at(partial(_written_of, folder), plan.shards.values()):
        meanwhile()
        if product is None:
            lacking.append(row.shard)
            continue
        written, product_checksum = product
        checksum.update(f"{row.shard}\t{product_checksum}\n".encode())
        if written > latest:
            newest, latest = row.shard, written
    return ProductScan(lacking, newest, checksum.hexdigest())


def _written_of(folder: str, rows: list[Shard]) -> list[tuple[int, str] | None]:
    """As :func:`_written`, of some shards; what a listing of their folder lacks is not looked for.

    A folder that is not there is asked for once, not for each of its thousand shards.
    """
    names: dict[str, set[str]] = {}
    found = []
    for row in rows:
        own, _, name = f"{folder}/{place(row.shard)}.json".rpartition("/")
        if own not in names:
            try:
                names[own] = set(os.listdir(own))
            except OSError:
                names[own] = set()
        found.append(_written(folder, row) if name in names[own] else None)
    return found


def _written(folder: str, row: Shard) -> tuple[int, str] | None:
    """When the receipt of a whole product was written (ns), and the product's checksum.

    None if the product or its receipt is not whole.
    """
    path = f"{folder}/{place(row.shard)}"
    try:
        with small.opened(f"{path}.json") as (descriptor, status):
            text = os.read(descriptor, min(status.st_size, small.MOST_BYTES))
        if not text.startswith(_head(row)) or not small.has_own_digest(text):
            return None
        file = _FILE.search(text)
        if file is None or os.stat(f"{path}.npy").st_size != int(file[1]):
            return None
        return status.st_mtime_ns, file[2].decode()
    except (IntegrityError, OSError):
        return None


def _head(row: Shard) -> bytes:
    """How the receipt of a shard under its plan begins, as it is written."""
    return (
        f'{{\n "schema": 1,\n "shard": "{row.shard}",\n "start": {row.start},\n '
        f'"stop": {row.stop},\n "fingerprint": "{row.fingerprint}",\n'
    ).encode()


def describe(plan: Plan, shards: Sequence[str], why: str = NO_PRODUCTS) -> str:
    """What is still to be computed, for the log and the dry run; ``why`` is said of the shards."""
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
