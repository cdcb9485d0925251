"""Which worker computes which shard: a claim is a symbolic link that only one worker can create.

All workers of a round cut its list of shards into the same blocks. A free worker claims a block by
a link to its own name in ``claims/RUN/ROUND``, which is complete from the first moment, unlike the
content of a file. Its pool gives the claims of a dead worker back, else they wait for the next
round.
"""

import json
import os
import random
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from shardwise import host
from shardwise.files.paths import Results
from shardwise.plan.plan import Plan
from shardwise.records import failures

_LIST = "list.json"
_BLOCKS = 64


@dataclass(frozen=True)
class Round:
    """What workers share: ids of shards in the order of claims, and which try of them this is."""

    name: str
    shards: Sequence[str]
    workers: int
    attempt: int

    def blocks(self) -> list[Sequence[str]]:
        """Its shards in blocks, one per claim: at least `_BLOCKS` per worker, if possible."""
        size = max(1, len(self.shards) // (_BLOCKS * self.workers))
        return [self.shards[i : i + size] for i in range(0, len(self.shards), size)]


def begin(plan: Plan, shards: Sequence[str], workers: int, attempt: int) -> str:
    """Begin a round of about this many workers; they join it by the name that is returned."""
    facts = {"shards": list(shards), "workers": workers, "attempt": attempt}
    # No name is used twice: a task that was given up must not join a later round.
    name = f"{failures.this_run()}/{os.urandom(4).hex()}"
    (plan.results.claims / name).mkdir(parents=True)
    (plan.results.claims / name / _LIST).write_text(json.dumps(facts))
    return name


def load(plan: Plan, name: str) -> Round:
    """Load a round by its name."""
    return Round(name, **json.loads((plan.results.claims / name / _LIST).read_bytes()))


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


def of_this_run(plan: Plan, shards: Sequence[str]) -> dict[str, failures.Failure]:
    """The failures of some shards in this run, by shard."""
    names = {plan.shards[shard].name: shard for shard in shards}
    found = failures.of_this_run(plan.results, names)
    return {names[name]: failure for name, failure in found.items()}


def worker_failure(plan: Plan) -> str:
    """The name of the failure of a worker that could not begin: it is of no single shard."""
    return f"multiply-{plan.key}"


def hopeless(failed: Mapping[str, failures.Failure], last: int) -> set[str]:
    """Shards that get no other try: the user has to act first, or they had their last."""
    return {s for s, f in failed.items() if failures.needs_user(f) or f.attempt >= last}


def worst(codes: Collection[int]) -> int:
    """The exit code of several failures: the first of 3, 2, 1 that occurs, else 75; 0 if none."""
    return next((code for code in (3, 2, 1) if code in codes), 75 if any(codes) else 0)


class Claims:
    """The claims in a round of a process of this node, which may have died.

    ``is_whole`` says of a shard whether it needs no computing.
    """

    def __init__(self, plan: Plan, own: Round, pid: int, is_whole: Callable[[str], bool]) -> None:
        self._plan, self._is_whole = plan, is_whole
        self._who = f"process {pid} on {host.node()}"
        self._folder = plan.results.claims / own.name
        self._blocks, self._workers, self.attempt = own.blocks(), own.workers, own.attempt
        self._ahead = self._take()
        # A process knows its own claims; those of another are searched for.
        taken = self._taken() if pid != os.getpid() else []
        self._claimed = [block for block in taken if self._is_own(block)]

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
        """Shards, as long as there is a free block, which is then claimed."""
        while (block := self._claim_block()) is not None:
            self._claimed.append(block)
            yield from self._open(block)

    def _claim_block(self) -> int | None:
        """Claim any of the first free blocks, so that workers seldom want the same one."""
        while free := sorted(set(range(len(self._blocks))).difference(self._taken())):
            block = random.choice(free[: self._workers])
            with suppress(FileExistsError):  # another worker was first
                (self._folder / str(block)).symlink_to(self._who)
                return block
        return None

    def _open(self, block: int) -> list[str]:
        """The shards of a block that are neither whole nor failed in this round."""
        left = [shard for shard in self._blocks[block] if not self._is_whole(shard)]
        ended = hopeless(of_this_run(self._plan, left), self.attempt)
        return [shard for shard in left if shard not in ended]

    def _is_own(self, block: int) -> bool:
        with suppress(FileNotFoundError):  # given back meanwhile
            return os.readlink(self._folder / str(block)) == self._who
        return False

    def _taken(self) -> list[int]:
        """The blocks claimed by any worker: links with a number, next to the list."""
        return [int(name) for name in os.listdir(self._folder) if name.isdecimal()]
