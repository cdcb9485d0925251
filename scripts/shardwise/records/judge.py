"""The judge: decides what a receipt is worth under a plan. Nobody else does.

Ledger, reduce, watch, page, metrics and audit all ask it, so that none takes what another refuses.
It looks at receipts, headers and sizes, and leaves the elements to whoever reads them anyway.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.errors import IntegrityError, short
from shardwise.files import pieces as piecess
from shardwise.files.paths import STATISTICS
from shardwise.plan import memory
from shardwise.plan.nodes import cover
from shardwise.plan.plan import Plan, Shard
from shardwise.plan.problem import statistic_dtype
from shardwise.records import receipts, witness
from shardwise.records.receipts import (
    ArrayFile,
    CopyReceipt,
    ProductReceipt,
    ReceiptPart,
    SumReceipt,
)


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
    receipts.check_file(plan.results.product(plan.shards[shard].name), receipt.file)
    return receipt


def check_receipt(plan: Plan, shard: str) -> ProductReceipt:
    """As :func:`check_product`, whatever has become of the product."""
    row = plan.shards[shard]
    path = plan.results.receipt(row.name)
    receipt = receipts.read(path, ProductReceipt)
    _expect_shard(receipt, row, receipt.key == row.key, path)
    _expect_products(plan, row, receipt.file, path)
    try:
        witness.read(receipt, plan.problem)
    except (ArithmeticError, LookupError, ValueError) as error:
        raise IntegrityError(f"{path} is damaged ({short(error)})") from None
    return receipt


def check_copy(plan: Plan, shard: str) -> CopyReceipt:
    """As :func:`check_receipt`, of the copy of a shard's matrices."""
    row = plan.shards[shard]
    path = plan.results.shard_receipt(row.input_name)
    receipt = receipts.read(path, CopyReceipt)
    _expect_shard(receipt, row, receipt.key == row.input_key, path)
    shape = (row.stop - row.start, *plan.problem.left)
    _expect_file(receipt.file, shape, plan.dtype, memory.SHARD_PIECES, path)
    return receipt


def check_summary(plan: Plan, receipt: SumReceipt) -> None:
    """Refuse a receipt of the sum that does not fit the plan, with `OtherPlan` if of another."""
    path, problem = plan.results.summary, plan.problem
    if receipt.plan != plan.facts.digest:
        raise OtherPlan(f"{path} belongs to an earlier plan")
    planned = {
        "matrices": problem.matrices, "shards": len(plan.shards),
        "product": problem.product, "keep": plan.settings.keep,
    }  # fmt: skip
    _expect(receipt, planned, path)
    if not receipt.files.keys() <= set(STATISTICS):
        raise IntegrityError(f"{path} names the results {short(list(receipt.files))}")


def check_statistic(plan: Plan, name: str, facts: ArrayFile) -> None:
    """Refuse a result, such as ``sum.npy``, that is not what plan and receipt say of it."""
    dtype, shape = statistic_dtype(name, plan.problem.product_dtype), plan.problem.product_shape
    pieces = piecess.checksum_pieces(math.prod(shape) * np.dtype(dtype).itemsize)
    _expect_file(facts, shape, dtype, pieces, plan.results.summary)
    receipts.check_file(plan.results.statistic(name), facts)


def _expect_shard(
    receipt: ProductReceipt | CopyReceipt, row: Shard, same_plan: bool, path: Path
) -> None:
    if not same_plan:
        raise OtherPlan(f"{path}: belongs to another plan")
    _expect(receipt, {"shard": row.shard, "start": row.start, "stop": row.stop}, path)


def _expect_products(plan: Plan, row: Shard, facts: ArrayFile, path: Path) -> None:
    """Refuse what is no stack of products of a shard, or of the nodes of their sum."""
    problem, count, nodes = plan.problem, row.stop - row.start, None
    dtype, item = problem.product_dtype, problem.product_item
    if plan.settings.keep == "sum":
        nodes = tuple(cover(row.start, row.stop))
        count, dtype, item = len(nodes), problem.sum_dtype, problem.sum_item
    shape = (count, *problem.product_shape)
    pieces = piecess.checksum_pieces(piecess.natural_row(shape, item), item)
    _expect_file(facts, shape, dtype, pieces, path)
    _expect(facts, {"nodes": nodes}, path)


def _expect_file(
    facts: ArrayFile, shape: tuple[int, ...], dtype: str, pieces: tuple[int, int], path: Path
) -> None:
    planned = {"shape": shape, "dtype": dtype, "row_bytes": pieces[0], "piece_bytes": pieces[1]}
    _expect(facts, planned, path)


def _expect(record: ReceiptPart, planned: dict[str, Any], path: Path) -> None:
    stated = {key: getattr(record, key) for key in planned}
    if stated != planned:
        raise IntegrityError(f"{path}: says {short(stated)}, but the plan says {short(planned)}")
