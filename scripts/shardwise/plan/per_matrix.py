"""The weight and the label of each matrix: the plan keeps a copy, which is all that jobs read."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.errors import InputError, IntegrityError, ShardwiseError
from shardwise.files import small
from shardwise.files.checksum import piece_digest
from shardwise.files.lookup import reading
from shardwise.files.paths import Results
from shardwise.plan.config import Settings
from shardwise.plan.cut import cover

MOST_LABELS = 256
_LARGEST_WEIGHT = 1e280  # float64 holds the sum of any number of these, each counted for many rows
_LONGEST_LABEL = 100
_WHOLE = re.compile("0|-?[1-9][0-9]{0,17}")  # 007 is a text
_BLOCK = 2**12  # matrices from one count of all labels to the next

Label = int | str
Key = tuple[int, ...]
"""Level and index of a node; with labels, the place of its label in `PerMatrix.names` first."""


@dataclass(frozen=True)
class PerMatrix:
    """The weight and the label of each matrix, by its place in the stack."""

    weights: np.ndarray | None = None  # float64 (N,); None if each product counts once
    labels: Any = None  # uint8 (N,), places in `names`; None if all have one sum
    names: tuple[Label, ...] = ()  # the distinct labels, sorted

    @property
    def total_weight(self) -> float | None:
        """The sum of all weights, rounded once."""
        return None if self.weights is None else math.fsum(self.weights)

    def weights_of(self, run: range) -> np.ndarray | None:
        """The weights of a run of matrices, ``(n,)``, if there are any."""
        return None if self.weights is None else np.asarray(self.weights[run.start : run.stop])

    @property
    def counts(self) -> list[int]:
        """How many matrices have each label."""
        return [] if self.labels is None else self._before(len(self.labels)).tolist()

    @cached_property
    def _before_blocks(self) -> np.ndarray:
        cuts = np.split(self.labels, range(_BLOCK, len(self.labels) + 1, _BLOCK))
        counts = [np.bincount(cut, minlength=len(self.names)) for cut in cuts]
        return np.cumsum([np.zeros(len(self.names), int), *counts], axis=0)

    def _before(self, place: int) -> Any:
        """How many matrices before a place have each label."""
        block, labels = place // _BLOCK, self.labels[place // _BLOCK * _BLOCK : place]
        return self._before_blocks[block] + np.bincount(labels, minlength=len(self.names))

    def spans(self, run: range) -> list[tuple[int, range]]:
        """Each label in a run, and the places of its matrices among all matrices of the label."""
        if self.labels is None:
            return [(0, run)]
        before, behind = self._before(run.start), self._before(run.stop)
        return [
            (label, range(before[label], behind[label]))
            for label in np.flatnonzero(behind > before).tolist()
        ]

    def groups(self, run: range) -> Iterator[tuple[Key, int, Any, np.ndarray | None]]:
        """What the sum of each label in a run takes; that of the run, if there are no labels.

        How the keys of its nodes begin, the place of its first matrix among all of the label, where
        its matrices are in the run, and their weights or None.
        """
        weights = self.weights_of(run)
        if self.labels is None:
            yield (), run.start, slice(None), weights
            return
        labels = np.asarray(self.labels[run.start : run.stop])
        for label, own in self.spans(run):
            places = np.flatnonzero(labels == label)
            low, high = int(places[0]), int(places[-1]) + 1
            which = slice(low, high) if high - low == len(own) else places
            yield (label,), own.start, which, None if weights is None else weights[which]

    def keys(self, run: range) -> list[Key]:
        """The nodes that the products of a run add up to, label by label."""
        return [
            (label, *node) if self.names else node
            for label, own in self.spans(run)
            for node in cover(own.start, own.stop)
        ]

    def digest(self, run: range, keep: str) -> str | None:
        """A digest of the weights and labels that the file of a run depends on; None if of none."""
        weights, said = self.weights_of(run), list[str]()
        if weights is not None:
            said.append(_digest(weights))
        if self.labels is not None and keep == "sum":
            spans = self.spans(run)
            starts = [[self.names[label], places.start] for label, places in spans]
            order = np.zeros(len(self.names), np.uint8)  # for each label in the run, its rank there
            order[[label for label, _ in spans]] = range(len(spans))
            said += [json.dumps(starts), _digest(order[self.labels[run.start : run.stop]])]
        return small.checksum(" ".join(said).encode(), 8) if said else None

    @property
    def whole_digests(self) -> dict[str, str]:
        """Digests of all weights and of all labels, by the key of the config."""
        arrays = ("weights", self.weights), ("labels", self.labels)
        return {key: _digest(array) for key, array in arrays if array is not None}


NOTHING = PerMatrix()


def load(results: Results, digests: Mapping[str, str], names: Iterable[Label] = ()) -> PerMatrix:
    """The weights and labels that a plan keeps, mapped; IntegrityError if a file is damaged."""
    found = {}
    for key, digest in digests.items():
        path, wrong = getattr(results, key), "it does not match its plan.json"
        try:
            found[key] = np.load(path, "r", allow_pickle=False)
            wrong *= _digest(found[key]) != digest
        except Exception as error:  # a damaged file makes NumPy fail in many ways
            wrong = str(error) or type(error).__name__
        if wrong:
            raise IntegrityError(f"{path}: {wrong}; remove {results.plan} too")
    return PerMatrix(**found, names=tuple(names))


def read(settings: Settings, matrices: int, column: list[str] | None = None) -> PerMatrix:
    """The weights and labels in the files of a config, or ``column`` of a sheet; checked."""
    weights, name = None, settings.weights
    if name is not None:
        found = open_array("weights", name, matrices)
        if found.dtype.kind not in "biuf" or found.itemsize > 8:
            raise InputError(f"weights: {name} holds {found.dtype}; save real numbers, as float64")
        weights = found.astype(np.float64)
        if not (fits := np.abs(weights) <= _LARGEST_WEIGHT).all():
            told = f"{name} holds {found[fits.argmin()]} for matrix {fits.argmin()}"
            cure = f"use numbers up to {_LARGEST_WEIGHT}; 0 skips a matrix"
            raise InputError(f"weights: {told}; {cure}")
    if (name := settings.labels) is None:
        return PerMatrix(weights)
    if column is None:
        found = open_array("labels", name, matrices)
    else:
        whole = all(_WHOLE.fullmatch(cell) for cell in column)
        found = np.array(list(map(int, column)) if whole else column)
    if found.dtype.kind not in "iuU" or found.itemsize > 4 * _LONGEST_LABEL:
        allowed = f"integers, or texts of up to {_LONGEST_LABEL} letters"
        raise InputError(f"labels: {name} holds {found.dtype}; save {allowed}")
    different, places = np.unique(found, return_inverse=True)
    if len(different) > MOST_LABELS:
        many = f"{len(different):,} different labels"
        raise InputError(f"labels: {name} holds {many}; use {MOST_LABELS} or fewer")
    return PerMatrix(weights, places.astype(np.uint8), tuple(different.tolist()))


def open_array(key: str, name: str, matrices: int | None = None) -> np.ndarray:
    """The mapped array of the ``.npy`` file that a key names; of shape ``(matrices,)`` if given."""
    try:
        with reading(Path(name), f"{key}: "):
            found: np.ndarray = np.lib.format.open_memmap(name, mode="r")  # never unpickles
    except ShardwiseError:
        raise
    except Exception as error:  # a damaged header makes NumPy fail in many ways
        words = f"{key}: {name} cannot be read as a .npy file: {error!s:.300}"
        raise InputError(f"{words}; write it with numpy.save") from error
    if matrices is not None and found.shape != (matrices,):
        cure = f"save one of shape ({matrices},), as the input has {matrices} matrices"
        raise InputError(f"{key}: {name} has shape {found.shape}; {cure}")
    return found


def _digest(array: np.ndarray) -> str:
    return f"{array.dtype.str}{array.shape}{piece_digest(np.ascontiguousarray(array), 0):032x}"
