"""The ledger: one row a shard, made from the receipts; what the reduce trusts."""

import csv
import math
import shlex
from collections.abc import Iterable
from typing import Any

from shardwise import receipts, sizes
from shardwise.arrays import commit
from shardwise.errors import IntegrityError, short
from shardwise.planfile import Plan
from shardwise.problem import ITEM_BYTES

_COLUMNS = ("shard", "start", "stop", "rows", "dtype", "bytes", "checksum", "row_bytes",
            "piece_bytes", "backend", "host", "device", "attempt", "seconds", "proven")  # fmt: skip
_BACKENDS = ("cupy", "numpy")
_MOST_NAMED = 20


def write(plan: Plan) -> None:
    """Check every receipt against the plan and commit ``ledger.tsv``.

    Raises
    ------
    IntegrityError
        Naming each shard that is missing, damaged or foreign, and the command that repairs it.
    """
    import pandas

    rows = [_row(receipt) for receipt in checked_receipts(plan)]
    table = pandas.DataFrame(rows, columns=list(_COLUMNS))
    with commit(plan.results.ledger) as file:
        table.to_csv(file, sep="\t", index=False, lineterminator="\n")


def read(plan: Plan) -> list[str]:
    """The checksums of the shards' files in the plan's order, by a ledger that is still true.

    Raises
    ------
    IntegrityError
        Where the ledger, a receipt or a file does not fit the plan.
    """
    path = plan.results.ledger
    now = [{k: str(v) for k, v in _row(r).items()} for r in checked_receipts(plan)]
    try:
        with open(path, newline="") as file:
            table = list(csv.DictReader(file, delimiter="\t"))
    except OSError as error:
        raise IntegrityError(
            f"{path}: cannot be read: {error.strerror}; run scripts/ledger.py, or snakemake again"
        ) from error
    except (ValueError, csv.Error) as error:
        raise IntegrityError(f"{path}: is damaged ({error}); run snakemake again") from error
    if table != now:
        raise IntegrityError(
            f"{path}: does not fit the receipts; remove it and run snakemake again"
        )
    return [row["checksum"] for row in now]


def checked_receipts(plan: Plan) -> list[dict[str, Any]]:
    """The receipts of exactly the plan's shards, each checked against its row and its file."""
    found: list[dict[str, Any]] = []
    problems: dict[str, str] = {}
    for shard_id in plan.shards:
        try:
            found.append(_checked(plan, shard_id))
        except IntegrityError as error:
            problems[shard_id] = str(error)
    backends = {receipt["backend"] for receipt in found}
    if len(backends) > 1:
        for receipt in found:
            problems[receipt["shard"]] = f"was computed by {receipt['backend']}"
    if problems:
        raise IntegrityError(_explain(plan, problems, backends))
    return found


def _checked(plan: Plan, shard_id: str) -> dict[str, Any]:
    path = plan.results.receipt(shard_id)
    receipt, row = receipts.read(path), plan.shards[shard_id]
    try:
        said = tuple(receipt[key] for key in ("shard", "start", "stop", "fingerprint"))
        facts, stated = receipt["file"], _row(receipt)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise IntegrityError(f"{path}: is damaged ({short(error)})") from None
    for key, value in stated.items():
        if not _is_plain(value):
            raise IntegrityError(f"{path}: is damaged ({key} is {short(value)})")
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
        return value.isprintable()
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


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
    ids = list(shards)
    names = ids[0] if len(ids) == 1 else "{" + ",".join(ids) + "}"
    folder = shlex.quote(str(plan.results.receipt("").parent))
    return f"rm -f {folder}/{names}.json"


def _row(receipt: dict[str, Any]) -> dict[str, Any]:
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
