"""Twenty random strikes at the tasks of a run: no shard is lost, and few are begun twice."""

import os
import random
import re
import signal
import time
from collections.abc import Iterator

import pytest

from tests import processes
from tests.night import Night
from tests.places import on

STRIKES, SHARDS = 20, 160

# Each shard notes the process that computes it; a shard that is to hang does so once.
STRUCK = """
import os, time
from pathlib import Path

HERE = Path(__file__).parent

def square(xp, block):
    if "SHARDWISE_RUN" in os.environ:  # else the function is tried
        (HERE / "busy" / str(os.getpid())).touch()
        hang = HERE / "hang" / f"{int(block[0, 0, 0]):05}"
        if hang.exists():
            hang.unlink()
            time.sleep(900)
        time.sleep(0.5)
    return block @ block
"""


def busy(night: Night) -> list[int]:
    """The processes that compute shards, and our programs that have started them."""
    inner = processes.living(int(path.name) for path in (night.root / "busy").iterdir())
    ours = re.compile(r"scripts/(work|multiply)\.py")
    outer = [pid for pid in processes.parents(inner) if ours.search(" ".join(processes.words(pid)))]
    return sorted([*inner, *outer])


def strikes(night: Night, kind: str) -> Iterator[None]:
    """At each step signal one random process that is at work, if any, until `STRIKES` were hit."""
    for _ in range(STRIKES):
        victims = busy(night)
        while not victims:
            yield
            victims = busy(night)
        os.kill(random.choice(victims), signal.Signals[kind])
        yield


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.fault("a worker or task that is killed")
@pytest.mark.fault("a limit of run time")
@pytest.mark.parametrize("kind", ["SIGTERM", "SIGKILL", "limit"])
@on(places=[f"{s} {d}" for s in ("slurm", "grid_engine") for d in ("jobs", "array", "pool", "mpi")])
def test_what_strikes_tasks_costs_what_they_had_in_hand(night, dispatch, kind):
    """Reruns bring all shards to their end, with the bits of NumPy, and leave nothing behind."""
    (night.root / "struck.py").write_text(STRUCK)
    for name in ("busy", "hang"):
        (night.root / name).mkdir()
    shards = 30 if dispatch == "jobs" else SHARDS
    night.configure(shards, dispatch=dispatch, product="struck.py:square", reduce={"ranks": 1})
    # If one job has all workers, each limit ends them all, after a minute: six are enough.
    limits = STRIKES if dispatch in ("jobs", "array") else 6
    hanging = random.sample(range(shards), limits) if kind == "limit" else []
    for shard in hanging:
        (night.root / "hang" / f"{shard:05}").touch()
    strike = iter(()) if hanging else strikes(night, kind)
    rule = dispatch if dispatch in ("pool", "mpi") else "multiply"
    limit = ("--set-resources", f"{rule}:runtime=1") if hanging else ()
    codes = []
    while not codes or codes[-1]:
        assert len(codes) <= STRIKES, f"no end of it: {codes}"
        run = night.start("--until", rule, *limit)
        while run.poll() is None:
            time.sleep(random.uniform(0.2, 1.5))
            next(strike, None)
        codes.append(run.returncode)
        night.wait_for("nothing lives", night.idle)
    assert set(codes) <= {0, 1, 75}, codes
    starts = night.starts()
    # A strike may cost two shards: a worker begins the next while it ends one.
    assert 0 < sum(starts.values()) - shards <= 2 * STRIKES, (codes, starts)
    night.finish()
