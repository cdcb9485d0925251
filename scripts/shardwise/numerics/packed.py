"""Planes of a binned sum in few bytes: of each number only the words of 16 bits that it needs.

Planes hold int64 (binned.py), of which most is never used: a level of float32 rarely takes more
than three words, and often none. docs/sums.md has the format of the file.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_WORD_BITS = 16


@dataclass(frozen=True)
class Packing:
    """How planes lie in an array of uint16, whose first axis are the words of all planes in turn.

    Attributes
    ----------
    words
        How many words each plane has, 0 to 4: the low ones of its numbers, lowest first, in two's
        complement.
    first
        What plane 0 holds everywhere, if it has no words. Other planes without words hold 0.
    """

    words: tuple[int, ...]
    first: int

    @classmethod
    def of(cls, facts: np.ndarray) -> "Packing":
        """The packing that facts of :func:`pack` ask for; at least one plane has words."""
        *needs, differences, first = facts.tolist()
        words = [-(-need.bit_length() // _WORD_BITS) for need in needs]
        if differences == 0 and any(words[1:]):
            return cls((0, *words[1:]), first - (first >> 63 << 64))  # signed
        return cls((max(1, words[0]), *words[1:]), 0)

    @classmethod
    def from_row(cls, row: Sequence[int]) -> "Packing":
        """What :meth:`to_row` has made whole numbers of."""
        return cls(tuple(row[1:]), row[0])

    def to_row(self) -> tuple[int, ...]:
        """Some whole numbers, as many for all sums of a dtype."""
        return self.first, *self.words

    def fits(self, planes: int, shape: tuple[int, ...]) -> bool:
        """Whether an array of this shape holds so many planes."""
        whole = len(self.words) == planes and all(0 <= words <= 4 for words in self.words)
        return whole and shape[:1] == (sum(self.words),) != (0,)


def pack(planes: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Write the words of planes ``(P, n)``, one row of n after the other, to ``out``.

    ``out`` is uint16 and has room for some rows, `memory.most_words` at most.

    Returns
    -------
    np.ndarray
        What the packing follows from, uint64 ``(P + 2,)``: of each plane a number as long as its
        longest in two's complement; one that is 0 where all elements of plane 0 are equal; and one
        of these.
    """
    ends = [(int(plane.min()), int(plane.max())) for plane in planes]
    low, high = ends[0]
    needs = [max(_need(number) for number in pair) for pair in ends]
    facts = np.array([*needs, (low ^ high) % 2**64, low % 2**64], np.uint64)
    at, width = 0, planes.shape[1]
    for plane, words in zip(planes, Packing.of(facts).words, strict=True):
        for word in range(words):
            out[at : at + width] = plane.view(np.uint16)[word::4]
            at += width
    return facts


def _need(number: int) -> int:
    """A number with as many bits as this one takes in two's complement; 0 for 0."""
    return number and (~number if number < 0 else number) << 1 | 1


def unpack(rows: Sequence[np.ndarray] | np.ndarray, packing: Packing) -> np.ndarray:
    """The planes, int64 ``(P, …)``, whose words are rows of uint16, all of one shape."""
    planes = np.zeros((len(packing.words), *rows[0].shape), np.int64)
    planes[0] = packing.first
    words = iter(rows)
    for plane, count in zip(planes, packing.words, strict=True):
        for word in range(count):
            kind = np.int16 if word == count - 1 else np.uint16  # the last has the sign
            np.add(plane, next(words).view(kind).astype(np.int64) << _WORD_BITS * word, out=plane)
    return planes
