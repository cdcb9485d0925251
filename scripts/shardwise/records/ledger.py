"""The ledger: one row per shard, made from the receipts that the reduce will trust."""

import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from shardwise.errors import IntegrityError
from shardwise.files.commit import commit, remove_leftovers
from shardwise.files.paths import Results, folders, for_bash, place
from shardwise.plan.plan import Plan
from shardwise.records import judge, store
from shardwise.records.receipts import ProductReceipt

_MOST_NAMED = 20
_MOST_WORDS = 1000  # of a command: the kernel takes 2 MiB at most, and paths may be long
_THREADS = 8  # one that reads a whole file takes about 8 MiB of memory
_MOST_AT_ONCE = 1000  # handing one shard to a thread takes as long as reading its receipt

_T = TypeVar("_T")
_R = TypeVar("_R")

COLUMNS = (
    "shard", "start", "stop", "rows", "dtype", "bytes", "checksum", "row_bytes", "piece_bytes",
    "backend", "host", "device", "attempt", "seconds", "proven",
)  # fmt: skip
"""In the order of the cells in `format_line`."""


def write(plan: Plan) -> None:
    """Check every receipt against the plan and commit ``ledger.tsv``.

    Call it when no shard is being written: it also removes what killed writers left behind.

    Raises
    ------
    IntegrityError
        Names up to 20 shards that are missing, damaged or foreign, and how to repair them all.
    """
    inner = [*folders(plan.results.products), *folders(plan.results.shards)]
    for folder in inner:
        remove_leftovers(folder)
    table = format_table(map(format_line, checked_receipts(plan)))
    _remove_temporary(plan, inner)
    marker = plan.results.listed(plan.key)
    store.unmark(marker)
    with commit(plan.results.ledger) as file:
        file.write(table)
    store.mark(marker)


def _remove_temporary(plan: Plan, inner: Iterable[Path]) -> None:
    """Remove temporary files of a plan whose shards are all whole, whatever node wrote them.

    Should a writer still be alive, its commit fails, and nothing is lost.
    """
    found = [path for folder in inner for path in folder.glob(".*.tmp")]
    rows = plan.shards.values() if found else ()
    whole = {name for row in rows for name in (row.name, row.input_name)}
    for path in found:
        if path.name[1:].partition(".")[0] in whole:
            path.unlink(missing_ok=True)


def format_line(receipt: ProductReceipt) -> bytes:
    """The line of the ledger for a receipt."""
    file, device = receipt.file, receipt.device
    cells = (
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
    return _join_cells(cells)


def _join_cells(cells: Iterable[Any]) -> bytes:
    line = io.StringIO(newline="")
    csv.writer(line, delimiter="\t", lineterminator="\n").writerow(cells)
    return line.getvalue().encode()


def format_table(lines: Iterable[bytes]) -> bytes:
    """The whole ledger: its header and these lines."""
    return b"".join([_join_cells(COLUMNS), *lines])


def look_at(
    look: Callable[[_T], _R], items: Iterable[_T], at_once: int = _MOST_AT_ONCE
) -> Iterator[tuple[_T, _R]]:
    """Each item with what ``look`` found for it, in order; a thread takes ``at_once`` items.

    However many items there are, only a few groups are in memory at a time.
    """
    rest = iter(items)
    groups = iter(lambda: list(islice(rest, at_once)), [])
    with ThreadPoolExecutor(_THREADS, "look") as pool:
        while ahead := list(islice(groups, 2 * _THREADS)):
            found = pool.map(lambda group: list(map(look, group)), ahead)
            for group, answers in zip(ahead, found, strict=True):
                yield from zip(group, answers, strict=True)


Judged = tuple[list[ProductReceipt], dict[str, str]]
"""The receipts that the judge accepts, and, by shard, why it refuses the others."""


def judge_shards(plan: Plan, shards: Iterable[str]) -> Judged:
    """Ask the judge about some shards: the accepted receipts, and why others are refused."""
    taken: list[ProductReceipt] = []
    refused: dict[str, str] = {}

    def verdict(shard: str) -> ProductReceipt | str:
        try:
            return judge.check_product(plan, shard)
        except IntegrityError as error:
            return str(error)

    for shard, found in look_at(verdict, shards):
        if isinstance(found, str):
            refused[shard] = found
        else:
            taken.append(found)
    return taken, refused


def checked_receipts(plan: Plan, judged: Iterable[Judged] | None = None) -> list[ProductReceipt]:
    """The receipts of all the plan's shards, in order; without ``judged``, they are judged here."""
    taken, refused = list[ProductReceipt](), dict[str, str]()
    for receipts, problems in judged or [judge_shards(plan, plan.shards)]:
        taken += receipts
        refused |= problems
    backends: set[str] = {receipt.backend for receipt in taken}
    if len(backends) > 1:
        refused |= {receipt.shard: f"was computed by {receipt.backend}" for receipt in taken}
    if refused:
        raise IntegrityError(_explain(plan, refused, backends))
    return taken


def _explain(plan: Plan, problems: dict[str, str], backends: set[str]) -> str:
    lines = [f"{shard}: {reason}" for shard, reason in list(problems.items())[:_MOST_NAMED]]
    if len(problems) > _MOST_NAMED:
        lines.append(f"… and {len(problems) - _MOST_NAMED} more")
    if len(backends) > 1:
        what = f"shards of different backends are never summed ({', '.join(sorted(backends))})"
        cure = "set backend: numpy or backend: cupy, and start the run again"
    else:
        what = f"{len(problems)} of {len(plan.shards)} shards cannot be summed"
        cure = f"compute them again: {build_repair(plan, problems)}, then start the run again"
    return f"{what}; {cure}\n  " + "\n  ".join(lines)


def build_repair(plan: Plan, shards: Iterable[str], files: Iterable[Path] = ()) -> str:
    """As :func:`repair`, for the products of some shards of a plan, and for other files."""
    return repair(plan.results, [plan.shards[shard].name for shard in shards], files)


def repair(results: Results, names: Iterable[str], files: Iterable[Path] = ()) -> str:
    """The bash command after which the next run makes some files again.

    ``names`` are those of shards' products. The command removes their receipts, named in one word:
    hexadecimal digits and a dash need no quotes. A copy in ``files`` is also named by its receipt.
    A folder in place of a file may hold anything: it is moved, to a name that overwrites nothing.
    """
    names, files = sorted(names), sorted(set(files))
    words, stems = [for_bash(path) for path in files], list(map(place, names))
    if stems:
        word = stems[0] if len(stems) == 1 else "{" + ",".join(stems) + "}"
        words.insert(0, f"{for_bash(results.products)}/{word}.json")
    places = {*files, *(p.with_suffix(".npy") for p in files if p.is_relative_to(results.shards))}
    astray = [path for path in places if path.is_dir() and not path.is_symlink()]
    known, products = set(names), str(results.products)
    # There may be a million names: listing each folder once avoids a system call for each name.
    for top in {os.path.dirname(f"{products}/{stem}") for stem in stems}:
        with suppress(OSError), os.scandir(top) as entries:
            astray += [
                Path(entry)
                for entry in entries
                if entry.name.endswith((".npy", ".json"))
                and entry.name.rpartition(".")[0] in known
                and entry.is_dir(follow_symlinks=False)
            ]
    moves = [
        f"mv -T --backup=numbered {for_bash(path)} {for_bash(Path(f'{path}.moved'))}"
        for path in sorted(astray)
    ]
    remove = f"rm -f {' '.join(words)}"
    if len(names) + len(files) > _MOST_WORDS:
        remove = rf"printf '%s\0' {' '.join(words)} | xargs -0 rm -f"
    return " && ".join([*moves, remove])
