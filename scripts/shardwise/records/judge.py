"""The judge: decides what a receipt is worth under a plan. Nobody else does.

Ledger and reduce, watch, page, metrics and audit all ask it about products, and tasks about copies,
so that none of them takes what another refuses. It looks at receipts, headers and sizes, and leaves
the elements to whoever reads them anyway. The receipts that it returns need no further checks.
`shardwise.records.missing` has a quicker look, which passes no receipt that the judge refuses.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.errors import IntegrityError, short
from shardwise.files import pieces as piecess
from shardwise.files.paths import STATISTICS
from shardwise.plan import memory
from shardwise.plan.plan import Plan
from shardwise.plan.problem import ITEM_BYTES, statistic_dtype
from shardwise.records import receipts, witness
from shardwise.records.receipts import (
    ArrayFile,
    CopyReceipt,
    ProductReceipt,
    ReceiptPart,
    SumReceipt,
)

COLUMNS = (
    "shard", "start", "stop", "rows", "dtype", "bytes", "checksum", "row_bytes", "piece_bytes",
    "backend", "host", "device", "attempt", "seconds", "proven",
)  # fmt: skip
"""Columns of the ledger."""


class OtherPlan(IntegrityError):  # noqa: N818 - named after what was found
    """A receipt that is as it was written, but of another plan."""


def check_product(plan: Plan, shard: str) -> ProductReceipt:
    """Return the receipt of a shard whose product is whole, as far as header and size show.

    Raises
    ------
    IntegrityError
        Where it is not. `OtherPlan` where the receipt is of another plan; `NoReceipt` and
        `UnknownSchema` as :func:`shardwise.records.receipts.read` raises them.
    """
    receipt = check_receipt(plan, shard)
    receipts.check_file(plan.results.product(shard), receipt.file)
    return receipt


def check_receipt(plan: Plan, shard: str) -> ProductReceipt:
    """Return the receipt of a shard's product, whatever has become of the product.

    Raises
    ------
    IntegrityError
        As :func:`check_product`, but for the file.
    """
    path, row = plan.results.receipt(shard), plan.shards[shard]
    receipt = receipts.read(path, ProductReceipt)
    if receipt.fingerprint != row.fingerprint:
        raise OtherPlan(f"{path}: belongs to another plan")
    _expect(receipt, {"shard": shard, "start": row.start, "stop": row.stop}, path)
    try:
        item = ITEM_BYTES[receipt.file.dtype]
        pieces = piecess.checksum_pieces(piecess.natural_row(receipt.file.shape, item), item)
        witness.read(receipt, plan.problem)
    except (ArithmeticError, LookupError, ValueError) as error:
        raise IntegrityError(f"{path}: is damaged ({short(error)})") from None
    _expect(receipt.file, _pieces(pieces), path)
    return receipt


def ledger_row(receipt: ProductReceipt) -> tuple[str | int | float, ...]:
    """The row of the ledger that a receipt makes, in the order of `COLUMNS`."""
    file, device = receipt.file, receipt.device
    return (
        receipt.shard,
        receipt.start,
        receipt.stop,
        receipt.stop - receipt.start if receipt.keep == "products" else 1,
        file.dtype,
        file.bytes,
        file.checksum,
        file.row_bytes,
        file.piece_bytes,
        receipt.backend,
        receipt.node,
        device.name if device.uuid is None else device.uuid,
        receipt.attempt,
        round(receipt.finished - receipt.started, 3),
        receipt.proof is not None,
    )


def check_copy(plan: Plan, shard: str) -> CopyReceipt:
    """Return the receipt of a copy of a shard's matrices; the copy itself may be gone by now.

    Raises
    ------
    IntegrityError
        As :func:`check_product`, but for the file.
    """
    path, row = plan.results.shard_receipt(shard), plan.shards[shard]
    receipt = receipts.read(path, CopyReceipt)
    if receipt.matrices != row.matrices:
        raise OtherPlan(f"{path}: belongs to another plan")
    _expect(receipt, {"shard": shard, "start": row.start, "stop": row.stop}, path)
    shape = (row.stop - row.start, *plan.problem.left)
    _expect_file(receipt.file, shape, plan.dtype, memory.SHARD_PIECES, path)
    return receipt


def check_summary(plan: Plan, receipt: SumReceipt) -> None:
    """Compare the receipt of the sum, once it is read, with the plan.

    Raises
    ------
    IntegrityError
        Where it does not fit. `OtherPlan` where it is of another plan.
    """
    path, problem = plan.results.summary, plan.problem
    if receipt.plan != plan.facts.digest:
        raise OtherPlan(f"{path}: is of an earlier plan")
    planned = {
        "matrices": problem.matrices, "shards": len(plan.shards),
        "product": problem.product, "keep": plan.settings.keep,
    }  # fmt: skip
    _expect(receipt, planned, path)
    if not receipt.files.keys() <= set(STATISTICS):
        raise IntegrityError(f"{path}: names the results {short(list(receipt.files))}")


def check_statistic(plan: Plan, name: str, facts: ArrayFile) -> None:
    """Compare a result, such as ``sum.npy``, with what the receipt of the sum says of it.

    Raises
    ------
    IntegrityError
        Where they do not fit, or do not fit the plan.
    """
    dtype, shape = statistic_dtype(name, plan.problem.product_dtype), plan.problem.product_shape
    pieces = piecess.checksum_pieces(math.prod(shape) * np.dtype(dtype).itemsize)
    _expect_file(facts, shape, dtype, pieces, plan.results.summary)
    receipts.check_file(plan.results.statistic(name), facts)


def _expect_file(
    facts: ArrayFile, shape: tuple[int, ...], dtype: str, pieces: tuple[int, int], path: Path
) -> None:
    """Refuse a receipt whose file is not what the plan makes it."""
    _expect(facts, {"shape": shape, "dtype": dtype, **_pieces(pieces)}, path)


def _pieces(pieces: tuple[int, int]) -> dict[str, int]:
    return dict(zip(("row_bytes", "piece_bytes"), pieces, strict=True))


def _expect(record: ReceiptPart, planned: dict[str, Any], path: Path) -> None:
    """Refuse values that are not the planned ones."""
    stated = {key: getattr(record, key) for key in planned}
    if stated != planned:
        raise IntegrityError(f"{path}: says {short(stated)}, but the plan says {short(planned)}")
