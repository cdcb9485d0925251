"""A plan of many small shards for the dispatchers, whose product says when it goes on or fails."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from shardwise.plan.plan import Plan

from tests import factories, fake_devices, processes
from tests.uses import one_at_a_time

SHARDS = 24
BAD = 7
"""The matrix whose product fails where there is a file `bad`."""

# Beside the product lie the files that steer it.
PRODUCT = """
import os
import time
from pathlib import Path

from shardwise import host

here = Path(__file__).parent
uses = here / "uses" / (host.node() + " " + os.environ.get("CUDA_VISIBLE_DEVICES", "no device"))

def square(xp, block):
    if not uses.parent.exists():  # the trial, when the plan is made
        return block @ block
    uses.touch()
    while (here / "hold").exists():
        time.sleep(0.05)
    began = time.time()
    time.sleep(0.05)
    if block[0, 0, 0] == {bad} and (here / "bad").exists():
        raise ValueError("this one never works")
    with open(uses, "a") as file:
        file.write(f"{{began}} {{time.time()}}\\n")
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
        (root / "uses").mkdir()
        self.devices = fake_devices.environment(devices, root / "leases")

    def line(self, *words: object) -> str:
        """The command that computes what is missing, for a shell on a node with fake devices."""
        variables = [f"{name}={value}" for name, value in self.devices.items()]
        command = factories.command("dispatch", "--plan", self.plan.results.plan, *words)
        return shlex.join(["env", *variables, *command])

    def put(self, name: str) -> None:
        """Make the shards wait (`hold`), or one of them fail (`bad`)."""
        (self.root / name).touch()

    def take_away(self, name: str) -> None:
        """Take that back."""
        (self.root / name).unlink()

    def receipts(self) -> dict[str, dict]:
        """All receipts, by shard."""
        found = self.plan.results.products.glob("*.json")
        return {path.stem.partition("-")[0]: json.loads(path.read_text()) for path in found}

    def starts(self) -> dict[str, int]:
        """How often each shard was begun; the journal of one begun once goes when it is done."""
        found = self.plan.results.log("multiply").parent.glob("*.starts")
        begun = {path.stem.partition("-")[0]: path.read_text().count("\n") for path in found}
        return dict.fromkeys(self.receipts(), 1) | begun

    def devices_at_work(self) -> list[str]:
        """The devices that have begun to compute, each with its node in front."""
        return sorted(path.name for path in (self.root / "uses").iterdir())

    def uses(self) -> dict[str, int]:
        """How many shards each device has computed; never two at once."""
        folder = self.root / "uses"
        lines = {path.name: path.read_text().splitlines() for path in folder.iterdir()}
        return one_at_a_time(
            (name, *map(float, line.split())) for name, found in lines.items() for line in found
        )

    def check(self, without: Sequence[int] = ()) -> None:
        """Each product is there, to the bit, but for some matrices."""
        numbers = sorted(set(range(SHARDS)) - set(without))
        assert sorted(self.receipts()) == [f"{number:05}" for number in numbers]
        for number in numbers:
            product = np.load(factories.file(self.plan, "product", f"{number:05}"))
            assert product.tobytes() == (self.stack[number] @ self.stack[number]).tobytes()

    def living(self) -> set[int]:
        """All processes that work on this plan, whatever started them."""
        leases = self.devices["SHARDWISE_LEASES"]
        return {
            pid
            for pid in processes.living(processes.running())
            if processes.environment(pid).get("SHARDWISE_LEASES") == leases
        }

    def leaders(self) -> list[int]:
        """The processes that hand out shards, or follow who does; the last rank at the end."""
        found = {}
        for pid in self.living():
            told, line = processes.environment(pid), processes.words(pid)
            is_rank = "PMI_RANK" in told and any("mpi4py" in word for word in line)
            if str(self.plan.results.plan) in line and (is_rank or "pool" in line):
                found[int(told.get("PMI_RANK", 0))] = pid
        return [found[rank] for rank in sorted(found)]

    def workers(self) -> set[int]:
        """The worker processes: each holds the lease of its device."""
        leases = Path(self.devices["SHARDWISE_LEASES"])
        held = [processes.holders(path) for path in leases.glob("*.lease")]
        return set().union(*held) & self.living()
