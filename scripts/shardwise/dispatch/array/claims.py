"""Which task of an array computes which shards, if there are more shards than tasks.

The shards are cut into blocks, and a task that is free claims the next block. Blocks shrink, so
that tasks of unequal speed end together: each round hands out half of what is left, in as many
equal blocks as there are tasks (factoring: S. F. Hummel, E. Schonberg and L. E. Flynn, Commun. ACM
35(8), 1992).

A claim is a file that names its task. It gets its name by a hard link, which fails if the name
exists, on network disks as well; so nobody needs a lock. A claim is never taken back. Shards that
a task gives back are marked, and the dispatch submits them again.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shardwise.dispatch.schedulers.common import Array
from shardwise.errors import writing
from shardwise.files.paths import Results


@dataclass(frozen=True)
class Claim:
    """A block of shards, by their numbers in the plan, and the index of the task that has it."""

    block: int
    index: int
    numbers: tuple[int, ...]


def cut_blocks(count: int, tasks: int) -> Iterator[range]:
    """Cut ``count`` places into blocks for a number of tasks, the largest first.

    Raises ValueError if there is no task.
    """
    if tasks < 1:
        raise ValueError(f"{tasks} tasks cannot share {count} shards")
    start = 0
    while start < count:
        size = max(1, (count - start) // (2 * tasks))
        for _ in range(tasks):
            stop = min(count, start + size)
            if start < stop:
                yield range(start, stop)
            start = stop


class Claims:
    """The claims of one array: a folder with a file per claimed block. The first claim makes it."""

    def __init__(self, results: Results, array: Array) -> None:
        self._folder = results.array_folder(array.run) / f"{array.name}.claims"
        self._blocks = [
            array.numbers[places.start : places.stop]
            for places in cut_blocks(len(array.numbers), array.tasks)
        ]
        self._known: set[int] = set()
        self._left: list[int] | None = None  # unclaimed blocks, the next one last

    def claim(self, index: int) -> Claim | None:
        """Claim the next block for a task; None if all are claimed.

        Raises OSError if the disk accepts no file.
        """
        own = self._own(index)
        with writing(own):
            if self._left is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                if not _is_linked(own):  # else a full disk would empty its earlier claims
                    own.write_text(f"{index}\n")
                self._left = sorted(self.left(), reverse=True)
            while self._left:
                block = self._left.pop()
                if _link(own, self._folder / str(block)):
                    return Claim(block, index, self._blocks[block])
        return None

    def left(self) -> set[int]:
        """The blocks that nobody has claimed."""
        return set(range(len(self._blocks))) - self._claimed()

    def of(self, index: int) -> list[Claim]:
        """The claims of a task, in the order in which it made them."""
        if not _is_linked(self._own(index)):
            return []
        self._known.clear()
        return [claim for claim in self.news() if claim.index == index]

    def news(self) -> list[Claim]:
        """The claims that were made since the last call, in the order of their blocks."""
        found = []
        for block in sorted(self._claimed() - self._known):
            with contextlib.suppress(OSError, ValueError, IndexError):  # the next look reads it
                index = int((self._folder / str(block)).read_text())
                found.append(Claim(block, index, self._blocks[block]))
                self._known.add(block)
        return found

    def _claimed(self) -> set[int]:
        try:
            return {int(name) for name in os.listdir(self._folder) if name.isdecimal()}
        except FileNotFoundError:
            return set()

    def _own(self, index: int) -> Path:
        """The file of a task, to which each of its claims is a link."""
        return self._folder / f"task-{index}"


def _is_linked(own: Path) -> bool:
    """Whether a task has claimed anything: its file then has a second name."""
    return own.exists() and own.stat().st_nlink > 1


def _link(own: Path, claim: Path) -> bool:
    """Give the file of a task the name of a claim; whether that succeeded."""
    try:
        os.link(own, claim)
    except FileExistsError:
        # A network disk may have made the link, lost its answer, and been asked again.
        return os.path.samefile(own, claim)
    return True
