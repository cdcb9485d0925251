"""A plan of many small shards for the dispatchers, whose product says when it goes on or fails."""

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from shardwise.planfile import Plan

from tests import factories, fake_devices, processes
from tests.uses import one_at_a_time

SHARDS = 24
BAD = 7
"""The matrix whose product fails where there is a file `bad`."""

# Beside the product lie the files that steer it.
PRODUCT = """
import time
from pathlib import Path

here = Path(__file__).parent

def square(xp, block):
    while (here / "hold").exists():
        time.sleep(0.05)
    time.sleep(0.05)
    if block[0, 0, 0] == {bad} and (here / "bad").exists():
        raise ValueError("this one never works")
    return block @ block
"""


class Spread:
    """The plan, its files, and what has become of its shards."""

    def __init__(self, root: Path, devices: int = 4) -> None:
        self.root = root
        root.mkdir(exist_ok=True)
        (root / "product.py").write_text(PRODUCT.format(bad=BAD))
        self.stack = factories.stack((SHARDS, 6, 6))
        self.stack[:, 0, 0] = np.arange(SHARDS)
        self.plan: Plan = factories.plan(
            root,
            self.stack,
            product=f"{root}/product.py:square",
            shards=SHARDS,
            materialize=False,
            backend="auto",
        )
        self.devices = fake_devices.environment(devices, root / "leases")

    def words(self, *words: object) -> list[str]:
        """The command that computes what is missing."""
        return factories.command("multiply", "--plan", self.plan.results.plan, "--all", *words)

    def line(self, *words: object) -> str:
        """The same for a shell, on a node with fake devices."""
        variables = [f"{name}={value}" for name, value in self.devices.items()]
        return shlex.join(["env", *variables, *self.words(*words)])

    def put(self, name: str) -> None:
        """Make the shards wait (`hold`), or one of them fail (`bad`)."""
        (self.root / name).touch()

    def take_away(self, name: str) -> None:
        """Take that back."""
        (self.root / name).unlink()

    def receipts(self) -> dict[str, dict]:
        """All receipts, by shard."""
        found = self.plan.results.receipt("0").parent.glob("*.json")
        return {path.stem: json.loads(path.read_text()) for path in found}

    def starts(self) -> dict[str, int]:
        """How often each shard was begun."""
        found = self.plan.results.starts("0").parent.glob("*.starts")
        return {path.stem: path.read_text().count("\n") for path in found}

    def begun(self) -> int:
        """How many shards were begun so far."""
        return len(self.starts())

    def uses(self) -> dict[str, int]:
        """How many shards each device had, by its node and UUID; never two at once."""
        return one_at_a_time(
            (f"{r['node']} {r['device']['uuid']}", r["started"], r["finished"])
            for r in self.receipts().values()
        )

    def check(self, without: Sequence[int] = ()) -> None:
        """Each product is there, to the bit, but for some matrices."""
        numbers = sorted(set(range(SHARDS)) - set(without))
        assert sorted(self.receipts()) == [f"{number:05}" for number in numbers]
        for number in numbers:
            product = np.load(self.plan.results.product(f"{number:05}"))
            assert product.tobytes() == (self.stack[number] @ self.stack[number]).tobytes()

    def living(self) -> set[int]:
        """All processes that work on this plan, whatever started them."""
        leases = self.devices["SHARDWISE_LEASES"]
        return {
            pid
            for pid in processes.living(processes.running())
            if processes.environment(pid).get("SHARDWISE_LEASES") == leases
        }

    def ranks(self) -> dict[int, int]:
        """The processes of the ranks, by rank."""
        found = {}
        for pid in self.living():
            told, line = processes.environment(pid), processes.words(pid)
            if "PMI_RANK" in told and "mpi4py" in line and str(self.plan.results.plan) in line:
                found[int(told["PMI_RANK"])] = pid
        return found

    def workers(self) -> set[int]:
        """The worker processes: each holds the lease of its device."""
        leases = Path(self.devices["SHARDWISE_LEASES"])
        held = [processes.holders(path) for path in leases.glob("*.lease")]
        return set().union(*held) & self.living()


def kill(pid: int) -> None:
    """End a process as a crash does."""
    os.kill(pid, 9)
