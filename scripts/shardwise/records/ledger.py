"""The ledger: one row a shard, made from the receipts; what the reduce trusts."""

import csv
import hashlib
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from shardwise.errors import IntegrityError
from shardwise.files import small
from shardwise.files.commit import commit, remove_leftovers
from shardwise.files.paths import for_bash
from shardwise.plan.plan import Plan
from shardwise.records import judge
from shardwise.records.receipts import ProductReceipt

_MOST_NAMED = 20

_AGAIN = "remove it and run snakemake again"


def write(plan: Plan) -> None:
    """Check every receipt against the plan and commit ``ledger.tsv``.

    No shard is being written any more: what killed writers left beside the products goes first.

    Raises
    ------
    IntegrityError
        Naming each shard that is missing, damaged or foreign, and the command that repairs it.
    """
    import pandas  # here: readers of the ledger do not need it

    for path in (plan.results.product(""), plan.results.shard("")):
        remove_leftovers(path.parent)
    rows = [judge.ledger_row(receipt) for receipt in checked_receipts(plan)]
    # As text: pandas would make 3.0 of a 3 that stands in a column with a 0.5.
    cells = [[str(value) for value in row] for row in rows]
    table = pandas.DataFrame(cells, columns=list(judge.COLUMNS), dtype=str)
    with commit(plan.results.ledger) as file:
        table.to_csv(file, sep="\t", index=False, lineterminator="\n")


def format_line(receipt: ProductReceipt) -> bytes:
    """The line of the ledger that a receipt makes."""
    return _line(judge.ledger_row(receipt))


def _line(cells: Iterable[Any]) -> bytes:
    line = io.StringIO(newline="")
    csv.writer(line, delimiter="\t", lineterminator="\n").writerow(cells)
    return line.getvalue().encode()


def format_table(lines: Iterable[bytes]) -> bytes:
    """The ledger of these lines."""
    return b"".join([_line(judge.COLUMNS), *lines])


def read(plan: Plan) -> list[ProductReceipt]:
    """The receipts of the shards in the plan's order, by a ledger that is still true.

    Raises
    ------
    IntegrityError
        Where the ledger, a receipt or a file does not fit the plan.
    """
    found = checked_receipts(plan)
    compare(plan, map(format_line, found))
    return found


def compare(plan: Plan, lines: Iterable[bytes]) -> None:
    """Compare the ledger with the lines that the receipts of all shards make now (`format_line`).

    Raises
    ------
    IntegrityError
        Where it cannot be read, or does not fit.
    """
    path, expected = plan.results.ledger, format_table(lines)
    try:
        raw = small.read(path, len(expected) + small.MOST_BYTES)
    except IntegrityError as error:
        raise IntegrityError(f"{error}; {_AGAIN}") from None
    if raw is None:
        raise IntegrityError(f"{path}: is missing; run scripts/ledger.py, or snakemake again")
    if raw != expected:
        raise IntegrityError(f"{path}: does not fit the receipts; {_AGAIN}")


def lists_products(plan: Plan, checksum: str) -> bool:
    """Whether ``ledger.tsv`` lists exactly these products, by `missing.ProductScan.checksum`."""
    found = hashlib.blake2b(digest_size=16)
    try:
        with open(plan.results.ledger, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file, delimiter="\t"):
                found.update(f"{row['shard']}\t{row['checksum']}\n".encode())
    except (OSError, ValueError, LookupError, csv.Error):
        return False
    return found.hexdigest() == checksum


def checked_receipts(plan: Plan) -> list[ProductReceipt]:
    """The receipts of exactly the plan's shards, each as the judge takes it."""
    found: list[ProductReceipt] = []
    problems: dict[str, str] = {}
    for shard_id in plan.shards:
        try:
            found.append(judge.check_product(plan, shard_id))
        except IntegrityError as error:
            problems[shard_id] = str(error)
    backends: set[str] = {receipt.backend for receipt in found}
    if len(backends) > 1:
        for receipt in found:
            problems[receipt.shard] = f"was computed by {receipt.backend}"
    if problems:
        raise IntegrityError(_explain(plan, problems, backends))
    return found


def _explain(plan: Plan, problems: dict[str, str], backends: set[str]) -> str:
    lines = [f"{shard}: {reason}" for shard, reason in list(problems.items())[:_MOST_NAMED]]
    if len(problems) > _MOST_NAMED:
        lines.append(f"… and {len(problems) - _MOST_NAMED} more")
    if len(backends) > 1:
        what = f"shards of different backends are never summed ({', '.join(sorted(backends))})"
        cure = "set backend: numpy or backend: cupy, and run snakemake again"
    else:
        what = f"{len(problems)} of {len(plan.shards)} shards cannot be summed"
        cure = f"compute them again: {build_repair(plan, problems)}, then snakemake as before"
    return f"{what}; {cure}\n  " + "\n  ".join(lines)


def build_repair(plan: Plan, shards: Iterable[str]) -> str:
    """The command, for bash, that makes the next run compute some shards again."""
    return f"rm -f {quote_names(plan.results.receipt('').parent, shards, '.json')}"


def quote_names(folder: Path, stems: Iterable[str], suffix: str) -> str:
    """The names of files in a folder, as one word for bash that no name can turn into an option.

    Parameters
    ----------
    stems
        Names without the suffix, of letters and digits only.
    """
    found = list(stems)
    names = found[0] if len(found) == 1 else "{" + ",".join(found) + "}"
    return f"{for_bash(folder)}/{names}{suffix}"
