"""The sum of the sums of several finished results folders: a small reduce, in one process.

Each folder's sum takes the place of a product: it is node (0, i) of a tree over the folders, in
the order in which they are given. Covariances are merged in that order as well. So the same folders
in the same order leave the same bits.
"""

import itertools
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shardwise.errors import InputError, IntegrityError, ShardwiseError, TryAgain
from shardwise.files.checksum import PieceChecksum, raw_bytes, read_fully
from shardwise.files.commit import commit
from shardwise.files.npy import DATA_OFFSET, StackWriter
from shardwise.files.paths import SUMS, Results, for_bash
from shardwise.numerics import statistics
from shardwise.plan import plan as plans
from shardwise.plan.covariance import count_rows
from shardwise.plan.identity import state_of
from shardwise.plan.per_matrix import Label
from shardwise.plan.plan import Plan, label_text
from shardwise.plan.problem import OF_SUMS, statistic_dtype, statistic_shape
from shardwise.records import judge, receipts
from shardwise.records.locks import take_lock
from shardwise.records.receipts import ArrayFile, SumReceipt
from shardwise.reduce.covariance import Group, Merged

_NUMBERS = 2**20  # of each sum, at a time; of all covariances together
_COVARIANT = ("row_mean", "covariance", "correlation")
_KINDS = {type(None): "none", int: "integers", str: "names"}


class _Source(NamedTuple):
    """A finished results folder, as it was when it was looked at."""

    folder: str
    plan: Plan
    summary: SumReceipt
    names: tuple[str, ...]  # ``sum``; ``sums`` with one for each label; or of a covariance
    files: list[tuple[int, ...]]  # tells the files of these names from any later ones

    @property
    def labels(self) -> Sequence[Label | None]:
        """Of its sums, in their order; None is that of the one of all matrices."""
        return self.plan.facts.labels or [None]

    @property
    def weights(self) -> np.ndarray:
        """Those of its matrices; 1 where it has none."""
        weights = self.plan.per_matrix.weights
        return np.ones(self.plan.problem.matrices) if weights is None else weights


class _Reader:
    """Reads a result of a source from its first byte to its last, for its checksum."""

    def __init__(self, source: _Source, name: str) -> None:
        self.source, self.facts = source, source.summary.files[name]
        self.path = source.plan.results.statistic(name)
        self._dtype = np.dtype(self.facts.dtype)
        nbytes = math.prod(self.facts.shape) * self._dtype.itemsize
        self.checksum = PieceChecksum(nbytes, self.facts.row_bytes, self.facts.piece_bytes)

    def read(self, first: int, count: int) -> np.ndarray:
        """So many numbers from a place on."""
        block = np.empty(count, self._dtype)
        with FileIO(self.path) as file:
            file.seek(DATA_OFFSET + first * block.itemsize)
            read_fully(file, raw_bytes(block), self.path)
        self.checksum.append(raw_bytes(block))
        return block


def run(out: Path, folders: Iterable[str]) -> int:
    """Add the sums of finished results folders, and commit the total and ``summary.json``.

    That is sum and mean; or a sum for each label, of the folders that have it, and ``labels.json``;
    or, of runs of ``covariance: true``, covariance, correlation and the mean of all rows.

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
        files = _write(results, sources)
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
    names: tuple[str, ...] = (SUMS if plan.problem.labels else "sum",)
    names = ("covariance", "row_mean") if plan.problem.covariance else names
    summary = judge.read_finished(plan, *names)
    states = [state_of(os.stat(results.statistic(name))) for name in names]
    return _Source(folder, plan, summary, names, states)


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
        "kind of labels": _KINDS[type(source.labels[0])],
        "covariance": str(problem.covariance).lower(),
        "ddof": facts.covariance.ddof if facts.covariance else "none",
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


def _write(results: Results, sources: Sequence[_Source]) -> dict[str, ArrayFile]:
    """Commit the total, and say what it is."""
    labels: list[Any] = sorted({label for source in sources for label in source.labels})
    weight = math.fsum(itertools.chain(*(source.weights for source in sources)))
    labelled, covariant = labels != [None], sources[0].plan.problem.covariance
    problem = replace(sources[0].plan.problem, labels=len(labels) if labelled else 0)
    names: tuple[str, ...] = ("sum",) if labelled or not weight else OF_SUMS
    names = _COVARIANT if covariant else names
    files = {name: SUMS if labelled else name for name in names}
    former = {results.label_names, *map(results.statistic, (*OF_SUMS, SUMS, *_COVARIANT))}
    with ExitStack() as stack:
        writers: dict[str, StackWriter] = {}
        for name, of_file in files.items():
            path = results.statistic(of_file)
            file = stack.enter_context(commit(path, sweep=True, receipt=results.summary))
            dtype = np.dtype(statistic_dtype(name, problem.product_dtype))
            writers[name] = StackWriter(file, statistic_shape(of_file, problem), dtype)
        readers = {name: [_Reader(s, name) for s in sources] for name in sources[0].names}
        if covariant:
            totals = _covariances(sources, readers["covariance"], readers["row_mean"])
        else:
            totals = _sums(sources, readers[sources[0].names[0]], labels, names, weight)
        for found in totals:
            for name, array in found.items():
                writers[name].append(array)
        for reader in itertools.chain(*readers.values()):
            _refuse_changed(reader)
    if labelled:
        counts = [dict(zip(s.labels, s.plan.facts.label_counts, strict=True)) for s in sources]
        matrices = [sum(own.get(label, 0) for own in counts) for label in labels]
        with commit(results.label_names) as file:
            file.write(label_text(labels, matrices))
        former.remove(results.label_names)
    for path in former - set(map(results.statistic, files.values())):
        path.unlink(missing_ok=True)  # of an earlier merge
    return {
        files[name]: receipts.describe_file(
            results.statistic(files[name]), writer.shape, writer.dtype, writer.checksum(),
            writer.row_bytes, writer.piece_bytes,
        )
        for name, writer in writers.items()
    }  # fmt: skip


def _sums(
    sources: Sequence[_Source], readers: Sequence[_Reader], labels: Sequence[Label | None],
    names: Sequence[str], weight: float,
) -> Iterator[dict[str, np.ndarray]]:  # fmt: skip
    """Sum and mean, some numbers at a time.

    With labels the sum of one after the other, each over the folders that have it.
    """
    problem = sources[0].plan.problem
    numbers, dtype = math.prod(problem.sum_shape), problem.sum_dtype
    strict = all(source.plan.settings.nonfinite == "error" for source in sources)
    for label, low in itertools.product(labels, range(0, numbers, _NUMBERS)):
        width = min(_NUMBERS, numbers - low)
        (total,) = statistics.choose(names, width, dtype)
        holders = [reader for reader in readers if label in reader.source.labels]
        with np.errstate(all="ignore"):  # what overflows is refused
            for place, reader in enumerate(holders):
                first = reader.source.labels.index(label) * numbers + low
                total.receive((0, place), reader.read(first, width))
            found = total.results(weight)
        if strict and not np.isfinite(found["sum"]).all():
            raise InputError(f"the total overflows {dtype}; merge fewer folders")
        yield found


def _covariances(
    sources: Sequence[_Source], readers: Sequence[_Reader], of_means: Sequence[_Reader]
) -> Iterator[dict[str, np.ndarray]]:
    """The mean of all rows, then covariance and correlation, some numbers at a time."""
    problem, covariant = sources[0].plan.problem, sources[0].plan.facts.covariance
    assert covariant is not None
    columns, weights = problem.left[1], [source.weights for source in sources]
    groups = (
        Group(*count_rows(source.plan.problem, own, covariant.ddof), reader.read(0, columns))
        for source, own, reader in zip(sources, weights, of_means, strict=True)
    )
    _, divisor = count_rows(problem, np.concatenate(weights), covariant.ddof)
    merged = Merged(groups, divisor)
    strict = all(source.plan.settings.nonfinite == "error" for source in sources)
    if strict and not np.isfinite(merged.mean).all():
        raise InputError("the mean of all rows overflows float64; merge fewer folders")
    yield {"row_mean": merged.mean}
    whole = (np.load(reader.path, "r", allow_pickle=False) for reader in readers)
    merged.learn(np.stack([each.diagonal() for each in whole]))
    step = max(1, _NUMBERS // len(sources))
    for low in range(0, columns**2, step):
        width = min(step, columns**2 - low)
        found = merged.elements(np.stack([reader.read(low, width) for reader in readers]), low)
        if strict and not np.isfinite(found["covariance"]).all():
            raise InputError("the covariance overflows float64; merge fewer folders")
        yield found


def _refuse_changed(reader: _Reader) -> None:
    """Refuse what a run has replaced meanwhile, or what is not as its run recorded it."""
    source, found = reader.source, reader.checksum.hexdigest()
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
    if found != reader.facts.checksum:
        raise IntegrityError(
            f"{reader.path} has checksum {found}, not {reader.facts.checksum}; nothing was "
            f"written. shardwise verify {for_bash(Path(source.folder))} names the repair"
        )


def _describe(sources: Sequence[_Source], matrices: int) -> dict[str, Any]:
    """What was summed. No time and no host: the same command leaves the same bytes."""
    problem, first = _problem(sources[0]), sources[0].plan.problem
    return {
        "stage": "merge",
        **{key: problem[key] for key in ("product", "precision", "backend")},
        "matrices": matrices,
        **({"rows": matrices * first.left[0]} if first.covariance else {}),
        "proven": all(source.summary.proven for source in sources),
        "sources": [
            {
                "folder": source.folder, "plan": source.plan.key,
                "matrices": source.plan.problem.matrices,
                "checksum": source.summary.files[source.names[0]].checksum,
            }
            for source in sources
        ],
    }  # fmt: skip
