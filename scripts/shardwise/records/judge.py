"""The judge: decides what a receipt is worth under a plan. Nobody else does.

Ledger and reduce, watch, page, metrics and audit all ask it about products, and tasks about copies,
so that none of them takes what another refuses. It looks at receipts, headers and sizes, and leaves
the elements to whoever reads them anyway. The receipts that it returns need no further checks.
`shardwise.records.missing` has a quicker look, which passes no receipt that the judge refuses.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.errors import IntegrityError, short
from shardwise.files import pieces as piecess
from shardwise.files.paths import STATISTICS
from shardwise.plan import memory
from shardwise.plan.plan import Plan
from shardwise.plan.problem import ITEM_BYTES, statistic_dtype
from shardwise.records import account, receipts

COLUMNS = {
    "shard": str, "start": int, "stop": int, "rows": int, "dtype": str, "bytes": int,
    "checksum": str, "row_bytes": int, "piece_bytes": int, "backend": str, "host": str,
    "device": str, "attempt": int, "seconds": float, "proven": bool,
}  # fmt: skip
"""Columns of the ledger, and the type of each."""

_BACKENDS = ("cupy", "numpy")
_MOST_LETTERS = 1000
_MOST_NUMBER = 2**63
_CHECKSUM = re.compile(r"[0-9a-f]{32}")
_MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class OtherPlan(IntegrityError):  # noqa: N818 - named after what was found
    """A receipt that is as it was written, but of another plan."""


def check_product(plan: Plan, shard: str) -> dict[str, Any]:
    """Return the receipt of a shard whose product is whole, as far as header and size show.

    Raises
    ------
    IntegrityError
        Where it is not. `OtherPlan` where the receipt is of another plan; `NoReceipt` and
        `UnknownSchema` as :func:`shardwise.records.receipts.read` raises them.
    """
    receipt = check_receipt(plan, shard)
    receipts.check_file(plan.results.product(shard), receipt["file"])
    return receipt


def check_receipt(plan: Plan, shard: str) -> dict[str, Any]:
    """Return the receipt of a shard's product, whatever has become of the product.

    Raises
    ------
    IntegrityError
        As :func:`check_product`, but for the file.
    """
    path, row = plan.results.receipt(shard), plan.shards[shard]
    receipt = receipts.read(path)
    if receipt.get("fingerprint") != row.fingerprint:
        raise OtherPlan(f"{path}: belongs to another plan")
    _expect(receipt, {"shard": shard, "start": row.start, "stop": row.stop}, path)
    try:
        facts, cells = receipt["file"], ledger_row(receipt)
        item = ITEM_BYTES[facts["dtype"]]
        pieces = piecess.checksum_pieces(piecess.natural_row(tuple(facts["shape"]), item), item)
        account.account(receipt, plan.problem)
    except _MALFORMED as error:
        raise IntegrityError(f"{path}: is damaged ({short(error)})") from None
    for key, kind in COLUMNS.items():
        if not _is_plain(cells[key], kind):
            raise IntegrityError(f"{path}: is damaged ({key} is {short(cells[key])})")
    if not _CHECKSUM.fullmatch(cells["checksum"]):
        raise IntegrityError(f"{path}: is damaged (checksum is {short(cells['checksum'])})")
    if cells["backend"] not in _BACKENDS:
        raise IntegrityError(
            f"{path}: says backend {short(cells['backend'])}; known are {', '.join(_BACKENDS)}"
        )
    _expect(facts, _pieces(pieces), path)
    return receipt


def ledger_row(receipt: Mapping[str, Any]) -> dict[str, Any]:
    """The row of the ledger that a receipt makes."""
    facts = receipt["file"]
    return {
        "shard": receipt["shard"],
        "start": receipt["start"],
        "stop": receipt["stop"],
        "rows": receipt["stop"] - receipt["start"] if receipt["keep"] == "products" else 1,
        "dtype": facts["dtype"],
        "bytes": facts["bytes"],
        "checksum": facts["checksum"],
        "row_bytes": facts["row_bytes"],
        "piece_bytes": facts["piece_bytes"],
        "backend": receipt["backend"],
        "host": receipt["node"],
        "device": receipt["device"].get("uuid", receipt["device"]["name"]),
        "attempt": receipt["attempt"],
        "seconds": float(round(receipt["finished"] - receipt["started"], 3)),
        "proven": receipt["proof"] is not None,
    }


def check_copy(plan: Plan, shard: str) -> dict[str, Any]:
    """Return the receipt of a copy of a shard's matrices; the copy itself may be gone by now.

    Raises
    ------
    IntegrityError
        As :func:`check_product`, but for the file.
    """
    path, row = plan.results.shard_receipt(shard), plan.shards[shard]
    receipt = receipts.read(path)
    if receipt.get("matrices") != row.matrices:
        raise OtherPlan(f"{path}: belongs to another plan")
    _expect(receipt, {"shard": shard, "start": row.start, "stop": row.stop}, path)
    shape = [row.stop - row.start, *plan.problem.left]
    _expect_file(receipt.get("file"), shape, plan.dtype, memory.SHARD_PIECES, path)
    return receipt


def check_summary(plan: Plan, receipt: dict[str, Any]) -> None:
    """Compare the receipt of the sum, once it is read, with the plan.

    Raises
    ------
    IntegrityError
        Where it does not fit. `OtherPlan` where it is of another plan.
    """
    path, problem = plan.results.summary, plan.problem
    if receipt.get("plan") != plan.facts.digest:
        raise OtherPlan(f"{path}: is of an earlier plan")
    planned = {
        "matrices": problem.matrices, "shards": len(plan.shards),
        "product": problem.product, "keep": plan.settings.keep,
    }  # fmt: skip
    _expect(receipt, planned, path)
    files = receipt.get("files")
    if not isinstance(files, dict) or not files.keys() <= set(STATISTICS):
        raise IntegrityError(f"{path}: says of its results {short(files)}")


def check_statistic(plan: Plan, name: str, facts: Any) -> None:
    """Compare a result, such as ``sum.npy``, with what the receipt of the sum says of it.

    Raises
    ------
    IntegrityError
        Where they do not fit, or do not fit the plan.
    """
    dtype, shape = statistic_dtype(name, plan.problem.product_dtype), plan.problem.product_shape
    pieces = piecess.checksum_pieces(math.prod(shape) * np.dtype(dtype).itemsize)
    _expect_file(facts, list(shape), dtype, pieces, plan.results.summary)
    receipts.check_file(plan.results.statistic(name), facts)


def _expect_file(
    facts: Any, shape: list[int], dtype: str, pieces: tuple[int, int], path: Path
) -> None:
    """Refuse a receipt whose file is not what the plan makes it."""
    _expect(facts, {"shape": shape, "dtype": dtype, **_pieces(pieces)}, path)
    if not _CHECKSUM.fullmatch(str(facts.get("checksum"))):
        raise IntegrityError(f"{path}: is damaged (checksum is {short(facts.get('checksum'))})")


def _pieces(pieces: tuple[int, int]) -> dict[str, int]:
    return dict(zip(("row_bytes", "piece_bytes"), pieces, strict=True))


def _expect(facts: Any, planned: dict[str, Any], path: Path) -> None:
    """Refuse values that are not the planned ones, types included: 1 is not true."""
    stated = {key: facts.get(key) for key in planned} if isinstance(facts, dict) else facts
    if repr(stated) != repr(planned):
        raise IntegrityError(f"{path}: says {short(stated)}, but the plan says {short(planned)}")


def _is_plain(value: Any, kind: type) -> bool:
    """Whether a value is of its type, and comes back from a table as it went in."""
    if type(value) is not kind:
        return False
    if isinstance(value, str):
        return len(value) < _MOST_LETTERS and value.isprintable()
    # A file of JSON may hold numbers of so many digits that Python prints none of them.
    return -_MOST_NUMBER < value < _MOST_NUMBER
