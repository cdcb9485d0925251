"""A source of a merge: a finished results folder, as it was when it was opened."""

from pathlib import Path
from typing import Any

import numpy as np

from shardwise.errors import InputError, IntegrityError, ShardwiseError, TryAgain
from shardwise.files import small
from shardwise.files.npy import DATA_OFFSET
from shardwise.files.paths import SUMS, Results, for_bash
from shardwise.plan import plan as plans
from shardwise.plan.per_matrix import Label
from shardwise.records import judge, receipts

_KINDS = {type(None): "none", int: "integers", str: "names"}


class Source:
    """A finished results folder.

    Attributes
    ----------
    names
        Its results: ``sum``; ``sums``, with one for each label; or those of a covariance.
    matrices
        The number of matrices by label, in the order of the sums; empty if there are no labels.
    weights
        The weights of its matrices ``(N,)``; all 1 if the run has no weights.

    Raises
    ------
    InputError, IntegrityError
        If the folder has no finished run with these results, or they are not whole.
    """

    def __init__(self, folder: str) -> None:
        results = Results(Path(folder))
        small.refuse_total(results)
        self.folder, self.plan = folder, plans.load(results.plan)
        problem, weights = self.plan.problem, self.plan.per_matrix.weights
        sums = (SUMS if problem.labels else "sum",)
        self.names = ("covariance", "row_mean") if problem.covariance else sums
        self.summary = judge.read_finished(self.plan, *self.names)
        counts = zip(self.plan.facts.labels, self.plan.facts.label_counts, strict=True)
        self.matrices: dict[Label, int] = dict(counts)
        self.weights = np.ones(problem.matrices) if weights is None else weights

    def problem(self) -> dict[str, Any]:
        """What must be the same for two sums to be added, by its name in messages."""
        problem, facts = self.plan.problem, self.plan.facts
        uuids = [device["uuid"] for device in self.summary.made_by["devices"]]
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
            "backend": "cupy" if any(uuids) else "numpy",  # a CPU has no UUID
            "kind of labels": _KINDS[type(next(iter(self.matrices), None))],
            "covariance": str(problem.covariance).lower(),
            "ddof": facts.covariance.ddof if facts.covariance else "none",
        }

    def describe(self) -> dict[str, Any]:
        """What the receipt of a total says of this source."""
        checksum = self.summary.files[self.names[0]].checksum
        own = {"folder": self.folder, "plan": self.plan.key, "matrices": len(self.weights)}
        return {**own, "checksum": checksum}

    def refuse(self, other: "Source") -> None:
        """Refuse another source if it holds the same sum, or a sum of another problem."""
        if self.plan.key == other.plan.key:
            raise InputError(
                f"{self.folder} and {other.folder} are the same folder, or sums of the same plan: "
                "their matrices would count twice; name each once"
            )
        own, its = self.problem(), other.problem()
        if apart := [f"{key} is {its[key]}, not {own[key]}" for key in own if own[key] != its[key]]:
            raise InputError(
                f"{other.folder} comes from a different problem than {self.folder}: "
                f"{'; '.join(apart)}. Merge sums of the same problem only: leave one out, or run "
                "one again with the other's config"
            )

    def read(self, name: str, first: int, count: int) -> np.ndarray:
        """The ``count`` numbers of a result from number ``first`` on."""
        dtype = np.dtype(self.summary.files[name].dtype)
        offset = DATA_OFFSET + first * dtype.itemsize
        return np.fromfile(self.plan.results.statistic(name), dtype, count, offset=offset)

    def diagonal(self, name: str) -> np.ndarray:
        """The diagonal of a square result."""
        path = self.plan.results.statistic(name)
        found: np.ndarray = np.load(path, "r", allow_pickle=False).diagonal()
        return found

    def refuse_changed(self) -> None:
        """Refuse results that a run has replaced meanwhile, or that are not as it recorded them."""
        try:
            now = Source(self.folder)
            same = (now.plan.key, now.summary) == (self.plan.key, self.summary)
        except ShardwiseError:
            same = False
        if not same:
            raise TryAgain(
                f"{self.folder} changed while it was being merged; nothing was written. Let the "
                "run in it finish, then merge again"
            )
        try:
            for name in self.names:
                facts = self.summary.files[name]
                receipts.check_elements(self.plan.results.statistic(name), facts)
        except IntegrityError as error:
            cure = f"for the repair, run: shardwise verify {for_bash(Path(self.folder))}"
            raise IntegrityError(f"{error}; nothing was written; {cure}") from error
