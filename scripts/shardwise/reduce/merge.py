"""The sum of the sums of several finished results folders: a small reduce, in one process.

Each folder's sum takes the place of a product: it is node (0, i) of a tree over the folders, in
the order in which they are given. So the same folders in the same order leave the same bits.
"""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shardwise.errors import InputError, IntegrityError, ShardwiseError, TryAgain
from shardwise.files.checksum import PieceChecksum, raw_bytes, read_fully
from shardwise.files.commit import commit
from shardwise.files.npy import DATA_OFFSET, StackWriter
from shardwise.files.paths import Results, for_bash
from shardwise.numerics import statistics
from shardwise.plan import plan as plans
from shardwise.plan.identity import state_of
from shardwise.plan.plan import Plan
from shardwise.plan.problem import OF_SUMS, statistic_dtype
from shardwise.records import judge, receipts
from shardwise.records.locks import take_lock
from shardwise.records.receipts import ArrayFile, SumReceipt

_NUMBERS = 2**20  # of each sum, at a time


class _Source(NamedTuple):
    """A finished results folder, as it was when it was looked at."""

    folder: str
    plan: Plan
    summary: SumReceipt
    file: tuple[int, ...]  # tells its sum.npy from any later one

    @property
    def path(self) -> Path:
        """Its sum."""
        return self.plan.results.statistic("sum")

    @property
    def facts(self) -> ArrayFile:
        """What its run recorded of that."""
        return self.summary.files["sum"]


def run(out: Path, folders: Iterable[str]) -> int:
    """Add the sums of finished results folders, and commit sum, mean and ``summary.json``.

    Returns
    -------
    int
        The number of matrices that were summed.

    Raises
    ------
    InputError
        Where a folder is named twice, has no finished run, or one of another problem; where no
        merge may write into ``out``; where the total overflows.
    IntegrityError
        Where a sum is not what its run recorded.
    TryAgain
        Where a folder changes meanwhile, or another merge writes into ``out``.
    """
    results, sources = Results(out), [_look_at(folder) for folder in folders]
    for number, source in enumerate(sources):
        for before in sources[:number]:
            _refuse_same(before, source)
        _refuse_other(sources[0], source)
    _refuse_taken(results)
    matrices = sum(source.plan.problem.matrices for source in sources)
    with _working_in(results):
        files = _write(results, sources, matrices)
        receipts.write(results.summary, _describe(sources, matrices) | {"files": files})
    return matrices


def _look_at(folder: str) -> _Source:
    results = Results(Path(folder))
    if not results.plan.exists():
        raise InputError(
            f"{folder} holds no plan.tsv: not the results of a run; name the results folders of "
            "finished runs"
        )
    plan = plans.load(results.plan)
    if plan.problem.covariance:
        raise InputError(
            f"{folder} is of covariance: true, and keeps no sums of rows, which a merge would "
            "need; name all files as the input of one run"
        )
    if plan.facts.per_matrix:
        keys = " and ".join(plan.facts.per_matrix)
        raise InputError(
            f"{folder} was computed with {keys}, which merge does not know; add such sums by "
            "yourself, with numpy.load, or run once over all matrices"
        )
    summary = judge.read_finished(plan, "sum")
    return _Source(folder, plan, summary, state_of(os.stat(results.statistic("sum"))))


def _refuse_same(one: _Source, other: _Source) -> None:
    if os.path.samefile(one.folder, other.folder) or one.plan.key == other.plan.key:
        raise InputError(
            f"{one.folder} and {other.folder} are one folder, or hold the sum of the same plan, "
            "whose matrices would count twice; name each once"
        )


def _refuse_other(first: _Source, other: _Source) -> None:
    one, two = _problem(first), _problem(other)
    if apart := [
        f"{name} is {two[name]}, not {one[name]}" for name in one if one[name] != two[name]
    ]:
        raise InputError(
            f"{other.folder} is of another problem than {first.folder}: {'; '.join(apart)}. Merge "
            "sums of the same problem only: leave one out, or run one again with the other's config"
        )


def _problem(source: _Source) -> dict[str, Any]:
    """What must be alike where sums are added, by its name in messages."""
    problem, facts = source.plan.problem, source.plan.facts
    uuids = [device["uuid"] for device in source.summary.made_by["devices"]]
    return {
        "product": problem.product,
        "digest of the function": facts.function,
        "digests of depends": facts.depends,
        "shape of A": problem.left,
        "shape of B": problem.right,
        "shape of the product": problem.product_shape,
        "dtype": problem.dtype,
        "dtype of the product": problem.product_dtype,
        "precision": facts.settings.precision,
        "backend": "cupy" if any(uuids) else "numpy",  # a CPU has none
    }


def _refuse_taken(results: Results) -> None:
    """Refuse to write into what a run made, or over what no merge has written."""
    root, whole = results.root, Path(os.path.realpath(results.root))
    for folder in (whole, *whole.parents):
        if Results(folder).marker.exists():
            raise InputError(
                f"{root} is, or lies in, a results folder of a run, into which no merge writes; "
                "name another folder, such as results/total"
            )
        if folder.is_file():
            raise InputError(f"{root} cannot be created: {folder} is a file; name another folder")
    if os.path.lexists(root) and not results.merging.is_file():
        raise InputError(
            f"{root} exists, and no merge wrote it; name a folder that does not exist yet, or that "
            "of an earlier merge"
        )


@contextmanager
def _working_in(results: Results) -> Iterator[None]:
    """Be the only merge into a folder. The lock marks it; a folder made in vain is removed."""
    with take_lock(results.merging, f"another merge writes into {results.root}; let it finish"):
        try:
            yield
        except BaseException:
            with suppress(OSError):
                if os.listdir(results.root) == [results.merging.name]:
                    results.merging.unlink()
                    results.root.rmdir()
            raise


def _write(results: Results, sources: Sequence[_Source], matrices: int) -> dict[str, ArrayFile]:
    """Commit sum and mean, and say what they are; each byte of the sums is read once."""
    problem, summary = sources[0].plan.problem, results.summary
    writers: dict[str, StackWriter] = {}
    with ExitStack() as stack:
        for name in OF_SUMS:
            path, dtype = results.statistic(name), statistic_dtype(name, problem.product_dtype)
            file = stack.enter_context(commit(path, sweep=True, receipt=summary))
            writers[name] = StackWriter(file, problem.product_shape, np.dtype(dtype))
        for found in _totals(sources, matrices):
            for name, writer in writers.items():
                writer.append(found[name])
    return {
        name: receipts.describe_file(
            results.statistic(name), writer.shape, writer.dtype, writer.checksum(),
            writer.row_bytes, writer.piece_bytes,
        )
        for name, writer in writers.items()
    }  # fmt: skip


def _totals(sources: Sequence[_Source], matrices: int) -> Iterator[dict[str, np.ndarray]]:
    """Sum and mean, some numbers at a time; at the end it is known that they are right."""
    problem = sources[0].plan.problem
    numbers, dtype = math.prod(problem.product_shape), problem.sum_dtype
    checksums = [
        PieceChecksum(numbers * problem.sum_item, source.facts.row_bytes, source.facts.piece_bytes)
        for source in sources
    ]
    strict = all(source.plan.settings.nonfinite == "error" for source in sources)
    for low in range(0, numbers, _NUMBERS):
        block = np.empty(min(_NUMBERS, numbers - low), dtype)
        (total,) = statistics.choose(OF_SUMS, len(block), dtype)
        with np.errstate(all="ignore"):  # what overflows is refused
            for place, (source, checksum) in enumerate(zip(sources, checksums, strict=True)):
                with FileIO(source.path) as file:
                    file.seek(DATA_OFFSET + low * block.itemsize)
                    read_fully(file, raw_bytes(block), source.path)
                checksum.append(raw_bytes(block))
                total.receive((0, place), block)
            found = total.results(matrices)
        if strict and not np.isfinite(found["sum"]).all():
            raise InputError(f"the total overflows {dtype}; merge fewer folders")
        yield found
    for source, checksum in zip(sources, checksums, strict=True):
        _refuse_changed(source, checksum.hexdigest())


def _refuse_changed(source: _Source, checksum: str) -> None:
    """Refuse a sum that a run has replaced meanwhile, or that is not what its run recorded."""
    try:
        now = _look_at(source.folder)
        same = (now.plan.key, now[2:]) == (source.plan.key, source[2:])
    except (ShardwiseError, FileNotFoundError):
        same = False
    if not same:
        raise TryAgain(
            f"{source.folder} has changed while it was merged; nothing was written. Let the run "
            "in it finish, then merge again"
        )
    if checksum != source.facts.checksum:
        raise IntegrityError(
            f"{source.path} has checksum {checksum}, not {source.facts.checksum}; nothing was "
            f"written. shardwise verify {for_bash(Path(source.folder))} names the repair"
        )


def _describe(sources: Sequence[_Source], matrices: int) -> dict[str, Any]:
    """What was summed. No time and no host: the same command leaves the same bytes."""
    problem = _problem(sources[0])
    return {
        "stage": "merge",
        **{key: problem[key] for key in ("product", "precision", "backend")},
        "matrices": matrices,
        "proven": all(source.summary.proven for source in sources),
        "sources": [
            {
                "folder": source.folder, "plan": source.plan.key,
                "matrices": source.plan.problem.matrices, "checksum": source.facts.checksum,
            }
            for source in sources
        ],
    }  # fmt: skip
