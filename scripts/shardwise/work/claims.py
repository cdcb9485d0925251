"""Which worker computes which shard: a claim is a symbolic link that only one worker can create.

All workers of a round cut its shards into the same blocks, and claim a block by a link to their own
name: unlike the content of a file, it is complete from the first moment. The pool gives the claims
of a dead worker back, else they wait for the next round.
"""

import errno
import json
import os
import random
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from shardwise import host
from shardwise.errors import InputError, TryAgain
from shardwise.files.paths import Results
from shardwise.plan.plan import Plan
from shardwise.records import failures
from shardwise.records.store import Store

_LIST = "list.json"
_BLOCKS, _SINGLE = 64, 16


@dataclass(frozen=True)
class Round:
    """What workers share: ids of shards in the order of claims, and which try of them this is."""

    name: str
    shards: Sequence[str]
    workers: int
    attempt: int

    def blocks(self) -> list[Sequence[str]]:
        """Its shards in blocks, one per claim: about `_BLOCKS` per worker, then single ones."""
        size = max(1, len(self.shards) // (_BLOCKS * self.workers))
        single = len(self.shards) - min(size, _SINGLE) * self.workers
        ends = [*range(0, single, size), *range(max(0, single), len(self.shards) + 1)]
        return [self.shards[i:j] for i, j in pairwise(ends)]


def begin(plan: Plan, shards: Sequence[str], workers: int, attempt: int) -> str:
    """Begin a round of about this many workers; they join it by the name that is returned."""
    # No name is used twice: a task that was given up must not join a later round.
    own = Round(f"{failures.this_run()}/{os.urandom(4).hex()}", shards, workers, attempt)
    (folder := plan.results.claims / own.name).mkdir(parents=True)
    (folder / _LIST).write_text(json.dumps(vars(own)))
    try:
        (folder / "first").symlink_to(_LIST)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        end(plan.results)
        raise InputError(
            f"{plan.results.root}: its disk takes no symbolic links ({error.strerror}), by which "
            "workers claim shards; set results to a folder on another disk, or dispatch: jobs"
        ) from error
    return own.name


def load(plan: Plan, name: str) -> Round:
    """Load a round by its name; TryAgain if it has ended."""
    try:
        return Round(**json.loads((plan.results.claims / name / _LIST).read_bytes()))
    except FileNotFoundError:
        raise TryAgain(f"the round {name} has ended; start the run again") from None


def end(results: Results) -> None:
    """Remove what the rounds of this run have left."""
    rounds = results.claims / failures.this_run()
    gone = rounds.with_name(f".{rounds.name}-{os.urandom(4).hex()}")
    # Renamed first: a worker that saw only some claims gone would claim the shards of others.
    with suppress(OSError):
        rounds.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)
    with suppress(OSError):
        results.claims.rmdir()


def with_hope(store: Store, shards: Sequence[str], last: int) -> list[str]:
    """The shards that get another try: the user need not act first, and ``last`` is to come."""
    failed = store.failed(shards).items()
    ended = {shard for shard, why in failed if failures.needs_user(why) or why.attempt >= last}
    return [shard for shard in shards if shard not in ended]


def worst(codes: Collection[int]) -> int:
    """The exit code of several failures: the first of 3, 2, 1 that occurs, else 75; 0 if none."""
    return next((code for code in (3, 2, 1) if code in codes), 75 if any(codes) else 0)


def forget_requeued(plan: Plan, name: str) -> None:
    """Free what this task of an array had claimed before the scheduler requeued it."""
    for link in filter(Path.is_symlink, (plan.results.claims / name).glob("*")):
        with suppress(FileNotFoundError):  # its worker has just given it back
            if host.job() and os.readlink(link).endswith(f", {host.job()}"):
                link.unlink()


class Claims:
    """The claims in a round of a process of this node, which may have died."""

    def __init__(self, store: Store, own: Round, pid: int) -> None:
        self._store = store
        self._who = f"process {pid} on {host.node()}, {host.job()}"
        self._folder = store.results.claims / own.name
        self._blocks, self._workers, self.attempt = own.blocks(), own.workers, own.attempt
        self._ahead, self._claimed = self._take(), list[int]()
        # A process knows its own claims; those of another are searched for.
        self._claimed += filter(self._is_own, self._taken() if pid != os.getpid() else ())

    def next(self) -> str | None:
        """Claim the next shard; None if none is left."""
        with suppress(FileNotFoundError):  # the round has ended
            return next(self._ahead, None)
        return None

    def open(self) -> list[str]:
        """The shards that this process has claimed and that have not ended."""
        return [shard for block in self._claimed for shard in self._open(block)]

    def give_back(self) -> None:
        """Let others claim these shards."""
        for block in filter(self._open, self._claimed):
            with suppress(OSError):
                (self._folder / str(block)).unlink()
        self._claimed, self._ahead = [], self._take()

    def _take(self) -> Iterator[str]:
        """The shards of a free block, which is then claimed, and of another, until none is free."""
        while free := sorted(
            set(range(len(self._blocks))).difference(self._taken(), self._claimed)
        ):
            block = random.choice(free[: self._workers])  # so workers seldom want the same one
            with suppress(FileExistsError):  # as NFS may say of our own, if an answer was lost
                (self._folder / str(block)).symlink_to(self._who)
            if self._is_own(block):  # else another worker was first
                self._claimed.append(block)
                yield from self._open(block)

    def _is_own(self, block: int) -> bool:
        """Whether this process has claimed a block."""
        with suppress(FileNotFoundError):  # given back meanwhile
            return os.readlink(self._folder / str(block)) == self._who
        return False

    def _open(self, block: int) -> list[str]:
        """The shards of a block that are neither whole nor failed in this round."""
        left = [shard for shard in self._blocks[block] if not self._store.is_whole(shard)]
        return with_hope(self._store, left, self.attempt)

    def _taken(self) -> list[int]:
        """The blocks claimed by any worker: links with a number, next to the list."""
        return [int(name) for name in os.listdir(self._folder) if name.isdecimal()]
