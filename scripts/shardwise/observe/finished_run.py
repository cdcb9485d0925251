"""A results folder opened in Python: its results as arrays, its ledger as a table."""

from bisect import bisect_right
from pathlib import Path

import numpy as np
import pandas as pd

from shardwise.errors import InputError
from shardwise.files.paths import SUMS, Results
from shardwise.observe import audit
from shardwise.plan import plan as plan_file
from shardwise.records.store import Store


class FinishedRun:
    """The results of one run: arrays, read-only, whose header and size match their receipts.

    A folder without a plan raises InputError, a damaged file IntegrityError.
    """

    def __init__(self, folder: str | Path) -> None:
        self._plan = plan_file.load(Results(Path(folder)).plan)
        self._results, self._store = self._plan.results, Store(self._plan)

    def _load(self, *names: str) -> dict[str, np.ndarray]:
        files = self._store.finished(*names).files
        return {name: np.load(self._results.statistic(name), "r") for name in names or files}

    @property
    def statistics(self) -> dict[str, np.ndarray]:
        """The results over all products by name, each ``(m, p)`` or ``(p,)``; or the `sums`."""
        return self._load()

    @property
    def sum(self) -> np.ndarray:
        """The sum of all products, ``(m, p)``: float64, complex128 or int64."""
        return self._load("sum")["sum"]

    @property
    def sums(self) -> np.ndarray:
        """The sum of the products of each label, ``(labels, m, p)``, if there are labels."""
        return self._load(SUMS)[SUMS]

    @property
    def labels(self) -> dict[int | str, int]:
        """The labels in the order of `sums`, and how many matrices have each."""
        facts = self._plan.facts
        return dict(zip(facts.labels, facts.label_counts, strict=True))

    def product(self, matrix: int) -> np.ndarray:
        """The product of one matrix, ``(m, p)``; matrices count from 0 in the order of the input.

        Raises IndexError if the stack has no such matrix, InputError if there is no such product.
        """
        if self._plan.settings.keep != "products":
            raise InputError(
                f"{self._results.root} has sums, no products; set keep: products and run again"
            )
        count = self._plan.problem.matrices
        if not 0 <= matrix < count:
            raise IndexError(f"matrix {matrix} is not in the stack, which holds 0 to {count - 1}")
        rows = list(self._plan.shards.values())
        row = rows[bisect_right(rows, matrix, key=lambda each: each.start) - 1]
        if not self._results.receipt(row.name).exists():
            raise self._store.unfinished()
        self._store.receipt(row.shard)
        array = np.load(self._results.product(row.name), "r")
        return array[matrix - row.start, : self._plan.problem.sum_shape[0]]

    @property
    def ledger(self) -> pd.DataFrame:
        """A row per shard: its matrices, its file, and where, when and by what it was computed."""
        if not self._store.is_listed():
            raise self._store.unfinished()
        texts = dict.fromkeys(("shard", "dtype", "checksum", "backend", "host", "device"), str)
        # A host may be called 0123, as a container, or NA.
        return pd.read_csv(self._results.ledger, sep="\t", dtype=texts, keep_default_na=False)

    def verify(self) -> audit.Audit:
        """Read every byte and compare it with the receipts, as ``shardwise verify`` does."""
        return audit.look(self._results.root)
