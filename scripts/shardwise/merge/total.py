"""The sum of the sums of several finished results folders: a small reduce, in one process.

Each folder's sum takes the place of a product: it is node (0, i) of a tree over the folders, in
the order in which they are given. Covariances are merged in that order as well. So the same folders
in the same order leave the same bits.
"""

import itertools
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.errors import InputError
from shardwise.files.commit import commit
from shardwise.files.paths import SUMS, Results
from shardwise.merge.source import Source
from shardwise.numerics import covariance, statistics
from shardwise.plan.covariance import count_rows
from shardwise.plan.per_matrix import Key, Label, PerMatrix
from shardwise.plan.plan import label_text
from shardwise.plan.problem import OF_SUMS
from shardwise.records import receipts
from shardwise.records.locks import take_lock
from shardwise.records.receipts import ArrayFile
from shardwise.reduce.results import ResultFiles

_OF_COVARIANCES = "row_mean", "covariance", "correlation"
_NUMBERS = 2**20  # taken at a time, counted over all labels or all covariances


def run(out: Path, folders: Iterable[str]) -> int:
    """Add the sums of finished results folders, and commit the total and ``summary.json``.

    The total is sum and mean; with labels, a sum for each label over the folders that have it, and
    ``labels.json``; with ``covariance: true``, covariance, correlation and the mean of all rows.

    Returns
    -------
    int
        The number of matrices that were summed.

    Raises
    ------
    InputError
        If a folder is named twice, has no finished run, or a run of another problem; if a merge
        must not write into ``out``; if the total overflows.
    IntegrityError
        If a sum is not what its run recorded.
    TryAgain
        If a folder changes meanwhile, or another merge writes into ``out``.
    """
    results, sources = Results(out), list(map(Source, folders))
    for one, other in itertools.combinations(sources, 2):
        one.refuse(other)
    _refuse_taken(results)
    counts = sorted(sum((Counter[Any](source.matrices) for source in sources), Counter()).items())
    matrices = sum(len(source.weights) for source in sources)
    with ExitStack() as stack:
        busy = f"another merge writes into {results.root}; let it finish"
        stack.enter_context(take_lock(results.merging, busy))
        stack.callback(_remove_if_empty, results)
        files = _write(results, sources, counts)
        said = {"labels": counts, "files": files}
        receipts.write(results.summary, _describe(sources, matrices) | said)
    return matrices


def _refuse_taken(results: Results) -> None:
    """Refuse to write into the results folder of a run, or over anything that no merge made."""
    root, whole = results.root, Path(os.path.realpath(results.root))
    for folder in (whole, *whole.parents):
        if Results(folder).marker.exists():
            raise InputError(
                f"{root} is, or lies in, the results folder of a run, where merge never writes; "
                "name another folder, such as results/total"
            )
        if folder.is_file():
            raise InputError(f"{root} cannot be created: {folder} is a file; name another folder")
    if os.path.lexists(root) and not results.merging.is_file():
        raise InputError(
            f"{root} exists, but no merge wrote it; name a folder that does not exist yet, or one "
            "from an earlier merge"
        )


def _remove_if_empty(results: Results) -> None:
    """Remove the folder of a merge that has failed before it wrote anything."""
    with suppress(OSError):
        if os.listdir(results.root) == [results.merging.name]:
            results.merging.unlink()
            results.root.rmdir()


def _write(
    results: Results, sources: Sequence[Source], counts: Sequence[tuple[Label, int]]
) -> dict[str, ArrayFile]:
    """Commit the total, and return its files; ``counts`` has each label with its matrices."""
    problem = replace(sources[0].plan.problem, labels=len(counts))
    strict = all(source.plan.settings.nonfinite == "error" for source in sources)
    weights = np.concatenate([source.weights for source in sources])
    if problem.covariance:
        names, totals = _OF_COVARIANCES, _covariances(sources, weights)
    else:
        weight = math.fsum(weights)
        names = (SUMS,) if counts else OF_SUMS if weight else ("sum",)
        totals = _sums(sources, [label for label, _ in counts], names, weight)
    files = ResultFiles(results, problem, problem.sum_item, names)
    try:
        files.open(files.create())
        for low, found in totals:
            wild = [name for name, array in found.items() if not np.isfinite(array).all()]
            if strict and wild and wild[0] != "correlation":  # a constant column has none
                raise InputError(f"the merged {wild[0]} overflows; merge fewer folders, or others")
            files.write(found, low)
        for source in sources:
            source.refuse_changed()
        files.close()
        files.refuse_incomplete()
        written = files.publish(files.digests)
    finally:
        files.discard()
    for name in {*OF_SUMS, SUMS, *_OF_COVARIANCES} - set(names):
        results.statistic(name).unlink(missing_ok=True)  # of an earlier merge
    results.label_names.unlink(missing_ok=True)
    if counts:
        with commit(results.label_names) as file:
            file.write(label_text(*zip(*counts, strict=True)))
    return written


Totals = Iterator[tuple[int, dict[str, np.ndarray]]]
"""The number of the first element, and some elements of each result from there on."""


def _sums(
    sources: Sequence[Source], labels: Sequence[Label], names: Iterable[str], weight: float
) -> Totals:
    """Sum and mean, or a sum for each label, over the folders that have it."""
    problem = sources[0].plan.problem
    # At least 2**16 numbers of each label, as small reads are slow: 256 labels take 128 MiB.
    numbers, step = math.prod(problem.sum_shape), max(2**16, _NUMBERS // max(1, len(labels)))
    said = PerMatrix(names=tuple(labels))
    for low in range(0, numbers, step):
        width, places = min(step, numbers - low), Counter[Key]()
        (total,) = statistics.choose({"sum", *names}, width, problem.sum_dtype, said)
        with np.errstate(all="ignore"):  # what overflows is refused
            for source in sources:
                for row, label in enumerate(source.matrices or [None]):
                    tree = () if label is None else (labels.index(label),)
                    array = source.read(source.names[0], row * numbers + low, width)
                    total.put((*tree, 0, places[tree]), array)
                    places[tree] += 1
            found = total.results(weight)
        yield low, found


def _covariances(sources: Sequence[Source], weights: np.ndarray) -> Totals:
    """The mean of all rows, then covariance and correlation."""
    problem, facts = sources[0].plan.problem, sources[0].plan.facts
    assert facts.covariance is not None
    columns, ddof = problem.left[1], facts.covariance.ddof
    counts = [count_rows(source.plan.problem, source.weights, ddof) for source in sources]
    _, divisor = count_rows(problem, weights, ddof)
    means = np.stack([source.read("row_mean", 0, columns) for source in sources])
    diagonals = np.stack([source.diagonal("covariance") for source in sources])
    merged, mean = covariance.of_groups(counts, means, divisor, diagonals)
    yield 0, {"row_mean": mean}
    step = max(1, _NUMBERS // len(sources))
    for low in range(0, columns**2, step):
        width = min(step, columns**2 - low)
        given = np.stack([source.read("covariance", low, width) for source in sources])
        yield low, merged.elements(given, low)


def _describe(sources: Sequence[Source], matrices: int) -> dict[str, Any]:
    """What was summed, without time or host, so that the same command leaves the same bytes."""
    problem, first = sources[0].problem(), sources[0].plan.problem
    return {
        "stage": "merge",
        **{key: problem[key] for key in ("product", "precision", "backend")},
        "matrices": matrices,
        **({"rows": matrices * first.left[0]} if first.covariance else {}),
        "proven": all(source.summary.proven for source in sources),
        "sources": [source.describe() for source in sources],
    }
