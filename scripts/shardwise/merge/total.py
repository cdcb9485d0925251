"""The sum of the sums of several finished results folders: a small reduce, in one process.

Each folder's sum is node (0, i) of a tree over the folders, in the order in which they are given.
Covariances are merged in that order as well. So the same folders in the same order leave the same
bits.
"""

import itertools
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.errors import InputError, IntegrityError, log, some
from shardwise.files.commit import commit
from shardwise.files.lookup import split
from shardwise.files.npy import DATA_OFFSET
from shardwise.files.paths import SUMS, Results, for_bash
from shardwise.numerics import covariance, statistics
from shardwise.plan import plan as plan_file
from shardwise.plan.covariance import count_rows
from shardwise.plan.per_matrix import Key, Label, PerMatrix
from shardwise.plan.problem import ITEM_BYTES, OF_SUMS
from shardwise.records import receipts
from shardwise.records.locks import take_lock
from shardwise.records.store import Store
from shardwise.reduce.results import ResultFiles

_KINDS = {type(None): "none", int: "integers", str: "names"}
_OF_COVARIANCES = "row_mean", "covariance", "correlation"
_NUMBERS = 2**16  # taken at a time of each folder, and of each label: 256 take 128 MiB

# The number of the first element, and some elements of each result from there on.
Totals = Iterator[tuple[int, dict[str, np.ndarray]]]


class Source:
    """A finished results folder, as it was when it was opened; errors as of `Store.finished`.

    ``matrices`` has the number of matrices by label, in the order of the sums.
    """

    def __init__(self, folder: str) -> None:
        self.folder, self.plan = folder, plan_file.load(Results(Path(folder)).plan)
        problem, weights = self.plan.problem, self.plan.per_matrix.weights
        sums = (SUMS if problem.labels else "sum",)
        self.names = ("covariance", "row_mean") if problem.covariance else sums
        self.summary = Store(self.plan).finished(*self.names)
        labels, counts = self.plan.facts.labels, self.plan.facts.label_counts
        self.matrices: dict[Label, int] = dict(zip(labels, counts, strict=True))
        self.weights = np.ones(problem.matrices) if weights is None else weights

    def problem(self) -> dict[str, Any]:
        """What must be the same for two sums to be added, by its name in messages."""
        problem, facts = self.plan.problem, self.plan.facts
        return {
            "product": problem.product,
            "digest of the function": facts.function,
            "digests of depends": facts.depends,
            "shape of A": problem.left,
            "shape of the product": problem.product_shape,
            "dtype": problem.dtype,
            "dtype of the product": problem.product_dtype,
            "precision": facts.settings.precision,
            "backend": self.summary.backend,
            "kind of labels": _KINDS[type(next(iter(self.matrices), None))],
            "covariance": str(problem.covariance).lower(),
            "ddof": facts.covariance.ddof if facts.covariance else "none",
        }

    def read(self, name: str, first: int, count: int) -> np.ndarray:
        """The ``count`` numbers of a result from number ``first`` on."""
        path, dtype = self.plan.results.statistic(name), np.dtype(self.summary.files[name].dtype)
        found = np.fromfile(path, dtype, count, offset=DATA_OFFSET + first * dtype.itemsize)
        if len(found) != count:
            raise IntegrityError(f"{path} has changed: it has become shorter; merge again")
        return found


def run(out: Path, folders: Iterable[str]) -> int:
    """Add the sums of finished results folders, and return the number of matrices.

    ``summary.json`` is written last. If anything does not fit, or changes meanwhile, an error says
    so, and nothing is written.
    """
    results, sources = Results(out), list(map(Source, folders))
    for one, other in itertools.combinations(sources, 2):
        if one.plan.key == other.plan.key:
            raise InputError(
                f"{one.folder} and {other.folder} are the same folder, or sums of the same plan: "
                "their matrices would count twice; name each once"
            )
        # A file may hold several arrays, and may have several names.
        known = {(split(row.path)[1], row.identity) for row in one.plan.sources}
        theirs = other.plan.sources
        if twice := [r.path for r in theirs if (split(r.path)[1], r.identity) in known]:
            log.warning(
                "%s and %s are both sums of %s, whose matrices count twice in the total",
                *(one.folder, other.folder, some(twice, 3)),
            )
        own, its = one.problem(), other.problem()
        if apart := [f"{key} is {its[key]}, not {own[key]}" for key in own if own[key] != its[key]]:
            raise InputError(
                f"{other.folder} comes from a different problem than {one.folder}: "
                f"{'; '.join(apart)}. Merge sums of the same problem only: leave one out, or run "
                "one again with the other's config"
            )
    if os.path.lexists(out) and not results.merging.is_file():
        raise InputError(
            f"{out} exists, but no merge wrote it; name a folder that does not exist yet, or one "
            "from an earlier merge"
        )
    counts = sorted(sum((Counter[Any](source.matrices) for source in sources), Counter()).items())
    matrices = sum(len(source.weights) for source in sources)
    problem, first = sources[0].problem(), sources[0].plan.problem
    # Without time or host, so that the same command leaves the same bytes.
    said = {
        "stage": "merge",
        **{key: problem[key] for key in ("product", "precision", "backend")},
        "matrices": matrices,
        **({"rows": matrices * first.left[0]} if first.covariance else {}),
        "proven": all(source.summary.proven for source in sources),
        "sources": [
            {"folder": own.folder, "plan": own.plan.key, "matrices": len(own.weights),
             "checksum": own.summary.files[own.names[0]].checksum}
            for own in sources
        ],
        "labels": counts,
    }  # fmt: skip
    with take_lock(results.merging, f"another merge writes into {out}; let it finish"):
        files = _write(results, sources, counts)
        receipts.write(results.summary, said | {"files": files})
    return matrices


def _write(
    results: Results, sources: Sequence[Source], counts: Sequence[tuple[Label, int]]
) -> dict[str, receipts.ArrayFile]:
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
    files = ResultFiles(results, problem, ITEM_BYTES[problem.sum_dtype], names)
    try:
        files.open(files.create())
        for low, found in totals:
            wild = [name for name, array in found.items() if not np.isfinite(array).all()]
            if strict and wild and wild[0] != "correlation":  # a constant column has none
                raise InputError(f"the merged {wild[0]} overflows; merge fewer folders, or others")
            files.write(found, low)
        for source, name in ((own, name) for own in sources for name in own.names):
            try:
                path = source.plan.results.statistic(name)
                receipts.check_elements(path, source.summary.files[name])
            except IntegrityError as error:
                raise IntegrityError(
                    f"{error}; nothing was written. If a run works there, let it finish, then "
                    f"merge again; else run: shardwise verify {for_bash(Path(source.folder))}"
                ) from error
        files.close()
        files.refuse_incomplete()
        written = files.publish(files.digests)
    finally:
        files.discard()
    for name in {*OF_SUMS, SUMS, *_OF_COVARIANCES} - {*names}:
        results.statistic(name).unlink(missing_ok=True)  # of an earlier merge
    results.label_names.unlink(missing_ok=True)
    if counts:
        with commit(results.label_names) as file:
            file.write(plan_file.label_text(*zip(*counts, strict=True)))
    return written


def _sums(
    sources: Sequence[Source], labels: Sequence[Label], names: Iterable[str], weight: float
) -> Totals:
    """Sum and mean, or a sum for each label over the folders that have it."""
    problem = sources[0].plan.problem
    numbers, said = math.prod(problem.sum_shape), PerMatrix(names=tuple(labels))
    for low in range(0, numbers, _NUMBERS):
        width, places = min(_NUMBERS, numbers - low), Counter[Key]()
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
    places = range(0, columns**2, columns + 1)
    diagonals = [[own.read("covariance", at, 1)[0] for at in places] for own in sources]
    merged, mean = covariance.of_groups(counts, means, divisor, np.array(diagonals))
    yield 0, {"row_mean": mean}
    for low in range(0, columns**2, _NUMBERS):
        width = min(_NUMBERS, columns**2 - low)
        given = np.stack([source.read("covariance", low, width) for source in sources])
        yield low, merged.elements(given, low)
