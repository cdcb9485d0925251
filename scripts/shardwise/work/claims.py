"""Which worker computes which shard: a claim is a link that only one of them can create.

A round begins with a list of shards in a folder of its own, ``claims/RUN/ROUND``, which gets its
name whole. All workers cut the list into the same blocks, so small that workers of unequal speed
end together. A worker that is free claims a block: it creates a symbolic link, which only one of
them can do, without a lock and on network disks as well. The link's target is no file but says who
made the claim: unlike what is written to a file, it is there from the first moment, however its
worker ends. So a worker that is started again goes on with its own, and what a dead one has left
is known. The folder is removed at the end of the round.
"""

import json
import os
import random
import shutil
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from shardwise import host
from shardwise.errors import IntegrityError, TryAgain, writing
from shardwise.files.paths import Results
from shardwise.plan.plan import Plan
from shardwise.records import failures

_LIST = "list.json"

_BLOCKS = 64


@dataclass(frozen=True)
class Round:
    """What the workers of a round share.

    ``shards`` are ids in the order in which they are claimed; ``attempt`` says which try of a shard
    this is, if it fails.
    """

    name: str
    shards: Sequence[str]
    workers: int
    attempt: int

    def blocks(self) -> list[Sequence[str]]:
        """Its shards, in what one claim takes: at least `_BLOCKS` for each worker, if they last."""
        size = max(1, len(self.shards) // (_BLOCKS * self.workers))
        return [self.shards[i : i + size] for i in range(0, len(self.shards), size)]


def begin(plan: Plan, shards: Sequence[str], workers: int, attempt: int) -> str:
    """Begin a round of so many workers, about; its name, by which they take part."""
    facts = {"plan": plan.key, "workers": workers, "attempt": attempt, "shards": list(shards)}
    # No name comes twice: a task that was given up must not take part in what follows its round.
    own = os.urandom(4).hex()
    new = plan.results.claims / failures.this_run() / f".{own}"
    with writing(new):
        new.mkdir(parents=True)
        (new / _LIST).write_text(json.dumps(facts))
        new.rename(new.with_name(own))
    return f"{failures.this_run()}/{own}"


def load(plan: Plan, name: str) -> Round:
    """The round of a name; IntegrityError where it is of another plan."""
    path = plan.results.claims / name / _LIST
    with writing(path):
        facts = json.loads(path.read_bytes())
    if facts.pop("plan") != plan.key:
        raise IntegrityError(
            f"{plan.results.plan} is not the plan of these claims: another command has replaced "
            "it; run snakemake again"
        )
    return Round(name, **facts)


def end(results: Results) -> None:
    """Remove what the rounds of this run have left."""
    shutil.rmtree(results.claims / failures.this_run(), ignore_errors=True)
    with suppress(OSError):
        results.claims.rmdir()


def of_this_run(plan: Plan, shards: Sequence[str]) -> dict[str, failures.Failure]:
    """The failures of some shards in this run, by shard."""
    names = {plan.shards[shard].name: shard for shard in shards}
    found = failures.of_this_run(plan.results, names)
    return {names[name]: failure for name, failure in found.items()}


def hopeless(failed: Mapping[str, failures.Failure], last: int) -> set[str]:
    """Shards that get no other try: they would fail in the same way, or have had the last one."""
    return {s for s, f in failed.items() if failures.needs_user(f) or f.attempt >= last}


def worst(codes: Collection[int]) -> int:
    """The exit code of several failures: 3, 2, 1, 75, or 0 where there is none."""
    return next((code for code in (3, 2, 1, TryAgain.exit_code) if code in codes), 0)


def has_left(results: Results, own: Round, who: str, process: int) -> bool:
    """Whether a worker came to an end of its own, and has handed back what it had not computed."""
    return (results.claims / own.name / _mark(who, process)).is_symlink()


def _mark(who: str, process: int) -> str:
    return f"{who} has left as process {process}"


class Claims:
    """The claims of one worker in a round.

    Parameters
    ----------
    who
        The worker; one that is started again in its place has the same name.
    is_whole
        Says whether a shard needs no computing.
    again
        Whether this worker was started again, and goes on with its earlier claims.
    """

    def __init__(
        self, plan: Plan, own: Round, who: str, is_whole: Callable[[str], bool], again: bool = False
    ) -> None:
        self._plan, self._round, self._who, self._is_whole = plan, own, who, is_whole
        self._folder = plan.results.claims / own.name
        self._blocks = own.blocks()
        self._claimed = [block for block in self._taken() if self._is_own(block)] if again else []
        self._waiting = deque(self.open())

    @property
    def attempt(self) -> int:
        """Which try of a shard this is."""
        return self._round.attempt

    def next(self) -> str | None:
        """Claim a shard; None if there is no more to claim."""
        with suppress(FileNotFoundError):  # the round has ended
            while not self._waiting:
                if (block := self._claim_block()) is None:
                    return None
                self._claimed.append(block)
                self._waiting.extend(self._open(block))
            return self._waiting.popleft()
        return None

    def open(self) -> list[str]:
        """What this worker has claimed and not ended."""
        return [shard for block in self._claimed for shard in self._open(block)]

    def ended(self) -> int:
        """How many of its shards have ended, well or not."""
        return sum(len(self._blocks[block]) for block in self._claimed) - len(self.open())

    def give_back(self) -> int:
        """Let others have what this worker has not ended; how many shards these are.

        It leaves a mark: who has none came to no end of its own (`has_left`).
        """
        left = 0
        for block in self._claimed:
            if still := len(self._open(block)):
                left += still
                with suppress(OSError):
                    (self._folder / str(block)).unlink()
        with suppress(OSError):
            (self._folder / _mark(self._who, os.getpid())).symlink_to("left")
        self._claimed, self._waiting = [], deque()
        return left

    def _claim_block(self) -> int | None:
        """Claim any of the first free blocks, so that workers seldom want the same one."""
        blocks = range(len(self._blocks))
        while free := sorted(set(blocks).difference(self._taken())):
            block = random.choice(free[: self._round.workers])
            path, now = self._folder / str(block), time.strftime("%Y-%m-%dT%H:%M:%S")
            with writing(path), suppress(FileExistsError):  # another worker was first
                path.symlink_to("\t".join([self._who, host.node(), str(os.getpid()), now]))
                return block
        return None

    def _open(self, block: int) -> list[str]:
        """The shards of a block that are neither whole nor failed in this round."""
        left = [shard for shard in self._blocks[block] if not self._is_whole(shard)]
        ended = hopeless(of_this_run(self._plan, left), self._round.attempt)
        return [shard for shard in left if shard not in ended]

    def _is_own(self, block: int) -> bool:
        with suppress(FileNotFoundError):  # handed back meanwhile
            return os.readlink(self._folder / str(block)).split("\t")[0] == self._who
        return False

    def _taken(self) -> list[int]:
        """The blocks that are claimed, by whomever; beside their links lie the list and marks."""
        with suppress(FileNotFoundError):  # the round has ended
            return [int(name) for name in os.listdir(self._folder) if name.isdecimal()]
        return []
