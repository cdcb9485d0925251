"""Which task of an array computes which shards, where it has more shards than tasks.

The shards are cut into blocks, and a task that is free claims the next block. Blocks shrink, so
that tasks of unequal speed end together: each round deals half of what is left, in as many equal
blocks as there are tasks (factoring: S. F. Hummel, E. Schonberg and L. E. Flynn, Commun. ACM 35(8),
1992).

A claim is a file that names its task. It gets its name by a hard link, which fails where the name
exists: so nobody needs a lock, and network disks do it alike. A claim is never taken back. Shards
that a task leaves behind are marked as given up, and the dispatch submits them again.
"""

import contextlib
import os
import secrets
import socket
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
    """Cut ``count`` places into blocks for so many tasks, the largest first.

    Raises ValueError where there is no task.
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
        self._next = 0

    def claim(self, index: int) -> Claim | None:
        """Claim the next block for a task; None where all are claimed.

        Raises ShardwiseError where the disk takes no file.
        """
        token = f"{index} {socket.gethostname()} {os.getpid()} {secrets.token_hex(4)}\n"
        temporary = self._folder / f".{secrets.token_hex(8)}"
        with writing(temporary):
            self._folder.mkdir(parents=True, exist_ok=True)
            temporary.write_text(token)
            try:
                while self._next < len(self._blocks):
                    block, self._next = self._next, self._next + 1
                    if self._link(temporary, self._folder / str(block), token):
                        return Claim(block, index, self._blocks[block])
            finally:
                temporary.unlink()
        return None

    def _link(self, temporary: Path, claim: Path, token: str) -> bool:
        """Whether a file got the name of a claim."""
        try:
            os.link(temporary, claim)
        except FileExistsError:
            # A network disk may have linked it, lost its answer, and been asked again.
            return claim.read_text() == token
        return True

    def news(self) -> list[Claim]:
        """The claims that were made since this was asked last, in the order of their blocks."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        blocks = {int(name) for name in names if name.isdecimal()} - self._known
        found = []
        for block in sorted(blocks):
            with contextlib.suppress(OSError, ValueError, IndexError):  # the next look reads it
                index = int((self._folder / str(block)).read_text().split()[0])
                found.append(Claim(block, index, self._blocks[block]))
                self._known.add(block)
        return found
