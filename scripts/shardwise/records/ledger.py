"""The ledger: one row per shard, made from the receipts that the reduce will trust."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

from shardwise.errors import IntegrityError
from shardwise.files.commit import commit
from shardwise.files.paths import folders, for_bash
from shardwise.plan.plan import Plan
from shardwise.records import store
from shardwise.records.receipts import ProductReceipt
from shardwise.records.store import WORKER, Store

THREADS = 8  # that look at shards: one that reads a whole file takes about 8 MiB of memory
_MOST_AT_ONCE = 1000  # handing one shard to a thread takes as long as reading its receipt


def write(plan: Plan) -> None:
    """Check every receipt against the plan, and commit ``ledger.tsv``.

    Call it when no shard is being written: it also removes what killed writers left behind.
    """
    made = checked_receipts(plan)
    # All shards are whole now. Should a writer still be alive, on any node, its commit fails.
    for folder in (*folders(plan.results.products), *folders(plan.results.shards)):
        for path in folder.glob(".*.tmp"):
            name = path.name[1:].partition(".")[0]
            row = plan.shards.get(name.partition("-")[0])
            if row and name in (row.name, row.input_name):
                path.unlink(missing_ok=True)
    Store(plan).forget(WORKER)
    marker = plan.results.listed(plan.key)
    store.unmark(marker)
    with commit(plan.results.ledger) as file:
        file.write(format_table(made))
    kept = sum(own.adopted is not None for own in made)
    words = f"{kept} of {len(made)} products are earlier ones of the same matrices"
    store.mark(marker, [words] if kept else ())


def format_table(made: Iterable[ProductReceipt]) -> bytes:
    """The whole ledger: its header, and a row for each receipt."""
    names = "shard start stop rows dtype bytes checksum row_bytes piece_bytes backend host device"
    table: list[Iterable[Any]] = [[*names.split(), "attempt", "seconds", "proven"]]
    for own in made:
        rows = own.stop - own.start if own.keep == "products" else 1
        file, device, took = own.file, own.device, round(own.finished - own.started, 3)
        name = device.name if device.uuid is None else device.uuid
        table.append((
            own.shard, own.start, own.stop, rows, file.dtype, file.bytes, file.checksum,
            file.row_bytes, file.piece_bytes, own.backend, own.node, name, own.attempt, took,
            own.proof is not None,
        ))  # fmt: skip
    return "".join("\t".join(map(str, row)) + "\n" for row in table).encode()


def checked_receipts(plan: Plan) -> list[ProductReceipt]:
    """The receipts of all the plan's shards, in order; IntegrityError if any is not valid."""
    own, ids, refused = Store(plan), list(plan.shards), dict[str, str]()

    def look(at: int) -> list[ProductReceipt]:
        taken = []
        for shard in ids[at : at + _MOST_AT_ONCE]:
            try:
                taken.append(own.receipt(shard))
            except IntegrityError as error:
                refused[shard] = str(error)
        return taken

    with ThreadPoolExecutor(THREADS, "receipts") as pool:
        taken = list(chain(*pool.map(look, range(0, len(ids), _MOST_AT_ONCE))))
    by = {receipt.backend: receipt.shard for receipt in reversed(taken)}
    if len(by) > 1:
        named = ", ".join(f"{shard} is of {backend}" for backend, shard in by.items())
        raise IntegrityError(
            f"shards of different backends are never summed ({named}); set backend: numpy or "
            "backend: cupy, and start the run again"
        )
    if refused:
        what = f"{len(refused)} of {len(plan.shards)} shards cannot be summed; compute them again"
        lines = [f"{shard}: {reason}" for shard, reason in sorted(refused.items())]
        cure = f"{what}: {build_repair(plan, refused)}, then start the run again"
        raise IntegrityError("\n  ".join([cure, *lines[:20]]))
    return taken


def build_repair(plan: Plan, shards: Iterable[str], files: Iterable[Path] = ()) -> str:
    """The bash command after which the next run makes the shards' products and ``files`` again."""
    paths = [plan.results.receipt(plan.shards[shard].name) for shard in sorted(shards)]
    return f"rm -f {' '.join(map(for_bash, [*paths, *sorted(set(files))]))}"
