"""What a config says of single matrices, in files of their own: a weight each.

The plan reads these files once, and keeps what they say beside ``plan.tsv``. Jobs read that alone.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.errors import InputError, IntegrityError, short
from shardwise.files import small, tables
from shardwise.files.commit import commit
from shardwise.files.lookup import absent, mode_of
from shardwise.files.npy import read_header
from shardwise.files.paths import Results
from shardwise.files.small import refuse_special
from shardwise.plan.config import Settings
from shardwise.plan.problem import Problem

_EXACT = 2**53  # whole numbers up to here are float64 numbers


@dataclass(frozen=True)
class PerMatrix:
    """What is said of each matrix, by its place in the stack.

    Attributes
    ----------
    weights
        float64 ``(N,)``, or None where each product counts once.
    """

    weights: np.ndarray | None = None

    @property
    def total_weight(self) -> float | None:
        """The sum of all weights, rounded once."""
        return None if self.weights is None else math.fsum(self.weights)

    def weights_of(self, run: range) -> np.ndarray | None:
        """The weights of a run of matrices, ``(n,)``, if there are any."""
        return None if self.weights is None else np.array(self.weights[run.start : run.stop])

    def digest(self, run: range) -> str | None:
        """Changes with what is said of a run of matrices; None if nothing is."""
        return None if self.weights is None else _digest(self.weights[run.start : run.stop])

    @property
    def whole_digests(self) -> dict[str, str]:
        """The same of all matrices, by the key of the config."""
        return {} if self.weights is None else {"weights": _digest(self.weights)}

    @property
    def notes(self) -> list[str]:
        """What whoever uses the results should know."""
        if self.weights is None:
            return []
        zeros = len(self.weights) - np.count_nonzero(self.weights)
        return [f"each product counts times its weight; {zeros:,} of {len(self.weights):,} are 0"]

    def arrays(self, results: Results) -> Iterator[tuple[Path, np.ndarray]]:
        """What a plan keeps, and where."""
        if self.weights is not None:
            yield results.weights, self.weights


def load(results: Results, checksums: Mapping[str, str]) -> PerMatrix:
    """What a plan has kept, mapped; IntegrityError where that is not what was written."""
    found = {}
    for path in (results.weights,):
        if path.name not in checksums:
            continue
        try:
            refuse_special(path)
            tables.check(_bytes(path), checksums, path)
            found[path.stem] = np.load(path, "r", allow_pickle=False)
        except (OSError, ValueError) as error:  # the latter of an empty file
            why = getattr(error, "strerror", None) or error
            raise IntegrityError(f"{path}: {why}; remove {results.plan} too") from error
    return PerMatrix(**found)


def read(settings: Settings, problem: Problem) -> PerMatrix:
    """What the files of a config say of each matrix.

    Raises
    ------
    InputError
        Where one does not fit the input, or what is computed.
    """
    return PerMatrix(_weights(settings, problem))


def _weights(settings: Settings, problem: Problem) -> np.ndarray | None:
    if settings.weights is None:
        return None
    name = settings.weights
    found = _array("weights", name, problem.matrices)
    if found.dtype.kind not in "biuf" or found.itemsize > 8:
        raise InputError(f"weights: {name} holds {found.dtype}; save real numbers, as float64")
    weights = found.astype(np.float64)
    fits = np.isfinite(weights) if found.dtype.kind == "f" else np.abs(weights) <= _EXACT
    if not fits.all():
        place = int(fits.argmin())
        raise InputError(
            f"weights: {name} holds {found[place]} for matrix {place}, but weights are finite "
            "float64 numbers, whole ones up to 2⁵³; correct it, or leave the matrix out by weight 0"
        )
    if problem.sum_dtype == "int64":
        raise InputError(
            f"weights: the products are {problem.product_dtype}, whose sums are exact whole "
            "numbers; to weigh them, save the input as float64"
        )
    return weights


def _array(key: str, name: str, matrices: int) -> np.ndarray:
    """The array ``(N,)`` of a ``.npy`` file, mapped."""
    path = Path(name)
    if mode_of(path) is None:
        raise InputError(f"{key}: {absent(path)}")
    refuse_special(path, f"{key}: ")
    try:
        found: np.ndarray = np.lib.format.open_memmap(path, mode="r")  # which unpickles nothing
    except (OSError, ValueError) as error:
        raise InputError(f"{key}: {_what_is_wrong(path, error)}") from error
    if found.shape != (matrices,):
        raise InputError(
            f"{key}: {path} has shape {found.shape}, but the input holds {matrices} matrices; "
            f"save an array of shape ({matrices},)"
        )
    return found


def _what_is_wrong(path: Path, error: Exception) -> str:
    """What is wrong with a file that NumPy does not read."""
    try:
        read_header(path)
    except InputError as words:
        return str(words)
    return f"{path} cannot be read: {short(str(error))}"


def write(kept: PerMatrix, results: Results) -> dict[str, str]:
    """Commit what a plan keeps; the checksums by the names of files."""
    checksums = {}
    for path, array in kept.arrays(results):
        with commit(path) as file:
            np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
        checksums[path.name] = small.checksum(_bytes(path))
    return checksums


def _bytes(path: Path) -> Any:
    return np.memmap(path, np.uint8, "r")


def _digest(array: np.ndarray) -> str:
    """Changes with the elements of an array."""
    return hashlib.blake2b(np.ascontiguousarray(array), digest_size=8).hexdigest()
