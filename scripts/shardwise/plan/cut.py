"""Arithmetic on counts and bytes: numbers in, table out. No files, no devices."""

from itertools import pairwise

from shardwise.files.paths import id_digits
from shardwise.plan import memory as plan_memory
from shardwise.plan.plan import Shard
from shardwise.plan.problem import Problem

# Under ``shards: auto`` shards grow rather than exceed this: one job per shard has a price.
MAX_AUTO_SHARDS = 1000
# In any plan: the table of so many takes some hundred MB, and no scheduler runs them all.
MAX_SHARDS = 1_000_000
# Rates that a slow node still reaches; run times asked for are a limit, not a forecast.
_SLOW_BYTES_PER_S = 50e6
_SLOW_FLOP_PER_S = 5e9
_START_MINUTES = 10


def shard_count(matrices: int, total_bytes: int, shards: int | str, shard_bytes: int) -> int:
    """Number of shards that the config asks for.

    Under ``auto``, as many as keep each at ``shard_bytes`` or less where a matrix allows it, at
    most :data:`MAX_AUTO_SHARDS`, and never more than there are matrices.
    """
    if shards != "auto":
        return int(shards)
    wanted = -(-total_bytes // shard_bytes)
    return max(1, min(wanted, MAX_AUTO_SHARDS, matrices))


def cut(matrices: int, shards: int) -> list[tuple[int, int]]:
    """Cut ``range(matrices)`` into contiguous ``(start, stop)`` runs.

    Every matrix is in exactly one run, and sizes differ by at most one.
    """
    if not 1 <= shards <= matrices:
        raise ValueError(f"cannot cut {matrices} matrices into {shards} shards")
    return list(pairwise(matrices * i // shards for i in range(shards + 1)))


def shard_ids(shards: int) -> list[str]:
    """Zero-padded decimal ids."""
    width = id_digits(shards)
    return [f"{i:0{width}}" for i in range(shards)]


def minutes(total_bytes: int, flop: int = 0) -> int:
    """Run time to ask for, in minutes: start-up, bytes over a slow disk, work on a slow CPU."""
    seconds = total_bytes / _SLOW_BYTES_PER_S + flop / _SLOW_FLOP_PER_S
    return _START_MINUTES + int(seconds / 60)


def table(
    problem: Problem, shards: int, keep: str, cuda: bool, precision: str = "ieee"
) -> list[Shard]:
    """The rows of the plan, digests left empty; ``cuda`` where a GPU may compute the shards.

    Raises ValueError unless ``1 <= shards <= problem.matrices``.
    """
    runs = cut(problem.matrices, shards)
    sizes = {
        count: (
            count * problem.matrix_bytes,
            plan_memory.result_bytes(problem, count, keep),
            plan_memory.task_memory(problem, count, keep, cuda),
            plan_memory.device_memory(problem, count, keep, precision) if cuda else 0,
        )
        for count in {stop - start for start, stop in runs}  # one or two of them
    }
    return [
        Shard(shard, start, stop, *sizes[stop - start])
        for shard, (start, stop) in zip(shard_ids(shards), runs, strict=True)
    ]
