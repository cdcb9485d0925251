"""The ledger: one row a shard, made from the receipts; what the reduce trusts."""

import csv
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from shardwise import receipts, sizes, witness
from shardwise.arrays import commit
from shardwise.errors import IntegrityError, short
from shardwise.paths import for_bash
from shardwise.planfile import Plan
from shardwise.problem import ITEM_BYTES

_COLUMNS = ("shard", "start", "stop", "rows", "dtype", "bytes", "checksum", "row_bytes",
            "piece_bytes", "backend", "host", "device", "attempt", "seconds", "proven")  # fmt: skip
_BACKENDS = ("cupy", "numpy")
_MOST_NAMED = 20
_MOST_LETTERS = 1000
_MOST_NUMBER = 2**63
_CHECKSUM = re.compile(r"[0-9a-f]{32}")


def write(plan: Plan) -> None:
    """Check every receipt against the plan and commit ``ledger.tsv``.

    Raises
    ------
    IntegrityError
        Naming each shard that is missing, damaged or foreign, and the command that repairs it.
    """
    import pandas

    columns, *cells = _table(row_of(receipt) for receipt in checked_receipts(plan))
    # As text: pandas would make 3.0 of a 3 that stands in a column with a 0.5.
    table = pandas.DataFrame(cells, columns=columns, dtype=str)
    with commit(plan.results.ledger) as file:
        table.to_csv(file, sep="\t", index=False, lineterminator="\n")


def _table(rows: Iterable[dict[str, Any]]) -> list[list[str]]:
    """Every cell of the ledger as text, so that it is read as it was written."""
    return [list(_COLUMNS), *([str(row[name]) for name in _COLUMNS] for row in rows)]


def read(plan: Plan) -> list[dict[str, Any]]:
    """The receipts of the shards in the plan's order, by a ledger that is still true.

    Raises
    ------
    IntegrityError
        Where the ledger, a receipt or a file does not fit the plan.
    """
    found = checked_receipts(plan)
    compare(plan, [row_of(receipt) for receipt in found])
    return found


def compare(plan: Plan, rows: Iterable[dict[str, Any]]) -> None:
    """Compare the ledger with the rows that the receipts of all shards make now (`row_of`).

    Raises
    ------
    IntegrityError
        Where it cannot be read, or does not fit.
    """
    path = plan.results.ledger
    try:
        with open(path, encoding="utf-8", newline="") as file:
            table = list(csv.reader(file, delimiter="\t"))
    except OSError as error:
        raise IntegrityError(
            f"{path}: cannot be read: {error.strerror}; run scripts/ledger.py, or snakemake again"
        ) from error
    except (ValueError, csv.Error) as error:
        raise IntegrityError(
            f"{path}: is damaged ({error}); remove it and run snakemake again"
        ) from error
    if table != _table(rows):
        raise IntegrityError(
            f"{path}: does not fit the receipts; remove it and run snakemake again"
        )


def lists(plan: Plan, checksum: str) -> bool:
    """Whether ``ledger.tsv`` lists exactly these products, by `missing.Standing.checksum`."""
    found = hashlib.blake2b(digest_size=16)
    try:
        with open(plan.results.ledger, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file, delimiter="\t"):
                found.update(f"{row['shard']}\t{row['checksum']}\n".encode())
    except (OSError, ValueError, LookupError, csv.Error):
        return False
    return found.hexdigest() == checksum


def checked_receipts(plan: Plan) -> list[dict[str, Any]]:
    """The receipts of exactly the plan's shards, each checked against its row and its file."""
    found: list[dict[str, Any]] = []
    problems: dict[str, str] = {}
    for shard_id in plan.shards:
        try:
            found.append(check(plan, shard_id, receipts.read(plan.results.receipt(shard_id))))
        except IntegrityError as error:
            problems[shard_id] = str(error)
    backends = {receipt["backend"] for receipt in found}
    if len(backends) > 1:
        for receipt in found:
            problems[receipt["shard"]] = f"was computed by {receipt['backend']}"
    if problems:
        raise IntegrityError(_explain(plan, problems, backends))
    return found


def check(plan: Plan, shard_id: str, receipt: dict[str, Any]) -> dict[str, Any]:
    """Compare a shard's receipt with the plan, and with the header and the size of its file.

    Raises
    ------
    IntegrityError
        Where they do not fit.
    """
    path, row = plan.results.receipt(shard_id), plan.shards[shard_id]
    try:
        said = tuple(receipt[key] for key in ("shard", "start", "stop", "fingerprint"))
        facts, stated = receipt["file"], row_of(receipt)
        witness.account(receipt, plan.problem)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise IntegrityError(f"{path}: is damaged ({short(error)})") from None
    for key, value in stated.items():
        if not _is_plain(value):
            raise IntegrityError(f"{path}: is damaged ({key} is {short(value)})")
    if not _CHECKSUM.fullmatch(str(stated["checksum"])):
        raise IntegrityError(f"{path}: is damaged (checksum is {short(stated['checksum'])})")
    if stated["backend"] not in _BACKENDS:
        raise IntegrityError(
            f"{path}: says backend {short(stated['backend'])}; known are {', '.join(_BACKENDS)}"
        )
    if repr(said) != repr((shard_id, row.start, row.stop, row.fingerprint)):
        raise IntegrityError(f"{path}: belongs to another plan")
    receipts.check_file(plan.results.product(shard_id), facts)
    found = stated["row_bytes"], stated["piece_bytes"]
    natural = sizes.natural_row(tuple(facts["shape"]), ITEM_BYTES[facts["dtype"]])
    allowed = sizes.checksum_pieces(natural, ITEM_BYTES[facts["dtype"]])
    if found != allowed:
        raise IntegrityError(
            f"{path}: says row_bytes and piece_bytes {found}, but those of its file are {allowed}"
        )
    return receipt


def _is_plain(value: Any) -> bool:
    """Whether a cell of the ledger comes back from the file as it went in."""
    if isinstance(value, str):
        return len(value) < _MOST_LETTERS and value.isprintable()
    # A file of JSON may hold numbers of so many digits that Python prints none of them.
    return isinstance(value, int | float) and -_MOST_NUMBER < value < _MOST_NUMBER


def _explain(plan: Plan, problems: dict[str, str], backends: set[str]) -> str:
    lines = [f"{shard}: {reason}" for shard, reason in list(problems.items())[:_MOST_NAMED]]
    if len(problems) > _MOST_NAMED:
        lines.append(f"… and {len(problems) - _MOST_NAMED} more")
    if len(backends) > 1:
        what = f"shards of different backends are never summed ({', '.join(sorted(backends))})"
        cure = "set backend: numpy or backend: cupy, and run snakemake again"
    else:
        what = f"{len(problems)} of {len(plan.shards)} shards cannot be summed"
        cure = f"compute them again: {remove_receipts(plan, problems)}, then snakemake as before"
    return f"{what}; {cure}\n  " + "\n  ".join(lines)


def remove_receipts(plan: Plan, shards: Iterable[str]) -> str:
    """The command, for bash, that makes the next run compute some shards again."""
    return f"rm -f {names_for_bash(plan.results.receipt('').parent, shards, '.json')}"


def names_for_bash(folder: Path, stems: Iterable[str], suffix: str) -> str:
    """The names of files in a folder, as one word for bash that no name can turn into an option.

    Parameters
    ----------
    stems
        Names without the suffix, of letters and digits only.
    """
    found = list(stems)
    names = found[0] if len(found) == 1 else "{" + ",".join(found) + "}"
    return f"{for_bash(folder)}/{names}{suffix}"


def row_of(receipt: dict[str, Any]) -> dict[str, Any]:
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
        "row_bytes": int(facts["row_bytes"]),
        "piece_bytes": int(facts["piece_bytes"]),
        "backend": receipt["backend"],
        "host": receipt["node"],
        "device": receipt["device"].get("uuid", receipt["device"]["name"]),
        "attempt": receipt["attempt"],
        "seconds": round(receipt["finished"] - receipt["started"], 3),
        "proven": receipt["proof"] is not None,
    }
