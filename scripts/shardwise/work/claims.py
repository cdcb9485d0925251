"""Which worker computes which shard: a claim is a link that only one of them can create.

A round begins with a list of shards in a folder of its own, ``claims/RUN/ROUND``, which gets its
name whole. All workers cut the list into the same blocks, which shrink, so that workers of unequal
speed end together. A worker that is free claims a block: it creates a symbolic link, which only one
of them can do, without a lock and on network disks as well. The link's target is no file but says
who made the claim: unlike what is written to a file, it is there from the first moment, however its
worker ends. So a worker that is started again goes on with its own. The folder is removed at the
end of the round.
"""

import json
import os
import random
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from shardwise import host
from shardwise.errors import IntegrityError, TryAgain, writing
from shardwise.files.paths import Results
from shardwise.plan.plan import Plan
from shardwise.records import failures

_LIST = "list.json"


def cut_blocks(shards: int, workers: int) -> Iterator[range]:
    """Cut a number of places into blocks, the largest first.

    As many blocks as there are workers take half of what is left (factoring: S. F. Hummel,
    E. Schonberg and L. E. Flynn, Commun. ACM 35(8), 1992).
    """
    start = 0
    while start < shards:
        size = max(1, (shards - start) // (8 * workers))
        for _ in range(workers):
            if start < shards:
                yield range(start, min(shards, start + size))
            start += size


@dataclass(frozen=True)
class Round:
    """What the workers of a round share.

    ``shards`` are ids in the order in which they are claimed; the tries of each are counted from
    ``attempt`` to ``last``.
    """

    name: str
    shards: Sequence[str]
    workers: int
    attempt: int
    last: int


def begin(plan: Plan, shards: Sequence[str], workers: int, retries: int) -> str:
    """Begin a round; its name, by which workers take part.

    Parameters
    ----------
    workers
        How many there will be, about: blocks are cut for as many.
    retries
        Tries after the first that workers of this round make of one shard.
    """
    run = failures.this_run()
    tried = [failure.attempt for failure in of_this_run(plan, shards).values()]
    attempt = 1 + max(tried, default=0)
    facts = {"plan": plan.key, "workers": workers, "attempt": attempt, "last": attempt + retries}
    # No name comes twice: a task that was given up must not take part in what follows its round.
    own = os.urandom(4).hex()
    new = plan.results.claims / run / f".{own}"
    with writing(new):
        new.mkdir(parents=True)
        (new / _LIST).write_text(json.dumps({**facts, "shards": list(shards)}))
        new.rename(new.with_name(own))
    return f"{run}/{own}"


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


def end(results: Results, name: str) -> None:
    """Remove what a round has left, and rounds of its run that were killed before."""
    shutil.rmtree(results.claims / name.partition("/")[0], ignore_errors=True)
    with suppress(OSError):
        results.claims.rmdir()


def of_this_run(plan: Plan, shards: Sequence[str]) -> dict[str, failures.Failure]:
    """The failures of some shards in this run, by shard."""
    names = {plan.shards[shard].name: shard for shard in shards}
    found = failures.of(plan.results, names).items()
    return {names[name]: failure for name, failure in found if failure.run == failures.this_run()}


def is_final(failure: failures.Failure) -> bool:
    """Whether another try would fail in the same way."""
    return failure.code != TryAgain.exit_code


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
        self._blocks = list(cut_blocks(len(own.shards), own.workers))
        self._claimed = [int(n) for n in self._names() if self._is_own(n)] if again else []
        self._waiting = deque(shard for block in self._claimed for shard in self._open(block))

    def next(self, idle: bool) -> tuple[str, int] | None:
        """Claim a shard; its id, and which try of it this is. None if there is no more to claim.

        A worker that is ``idle`` also tries shards again that have failed: these may kill it.
        """
        with suppress(FileNotFoundError):  # the round has ended
            while not self._waiting:
                if (block := self._claim_block()) is None:
                    return self._claim_again() if idle else None
                self._claimed.append(block)
                self._waiting.extend(self._open(block))
            return self._waiting.popleft(), self._round.attempt
        return None

    def give_back(self) -> int:
        """Let others have what this worker has claimed and not ended; how many shards these are."""
        left = 0
        for block in self._claimed:
            if still := len(self._open(block)):
                left += still
                with suppress(OSError):
                    (self._folder / str(block)).unlink()
        self._claimed, self._waiting = [], deque()
        return left

    def _claim_block(self) -> int | None:
        """Claim any of the first free blocks, so that workers seldom want the same one."""
        blocks = range(len(self._blocks))
        while free := sorted(set(blocks).difference(map(_number, self._names()))):
            block = random.choice(free[: self._round.workers])
            if self._create(str(block)):
                return block
        return None

    def _claim_again(self) -> tuple[str, int] | None:
        """Claim a further try of a shard that has failed in this run."""
        if self._round.last == self._round.attempt:
            return None
        for shard, failure in of_this_run(self._plan, self._round.shards).items():
            again = failure.attempt + 1
            may = not is_final(failure) and again <= self._round.last
            if may and self._create(f"{shard}.{again}"):
                return shard, again
        return None

    def _open(self, block: int) -> list[str]:
        """The shards of a block that are neither whole nor failed in this round."""
        places = self._blocks[block]
        left = [s for s in self._round.shards[places.start : places.stop] if not self._is_whole(s)]
        failed = of_this_run(self._plan, left)
        return [s for s in left if s not in failed or not self._has_ended(failed[s])]

    def _has_ended(self, failure: failures.Failure) -> bool:
        return is_final(failure) or failure.attempt >= self._round.attempt

    def _create(self, name: str) -> bool:
        path, now = self._folder / name, time.strftime("%Y-%m-%dT%H:%M:%S")
        with writing(path):
            try:
                path.symlink_to("\t".join([self._who, host.node(), str(os.getpid()), now]))
            except FileExistsError:
                return False
        return True

    def _is_own(self, name: str) -> bool:
        return name.isdecimal() and os.readlink(self._folder / name).split("\t")[0] == self._who

    def _names(self) -> list[str]:
        return os.listdir(self._folder)


def _number(name: str) -> int:
    """The block of a claim; -1 for what is no claim of a block."""
    return int(name) if name.isdecimal() else -1
