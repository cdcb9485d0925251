"""What the main job's tests on real schedulers share: a workspace, its jobs, and their waiting."""

import abc
import json
import os
import shlex
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from tests.uses import one_at_a_time
from tests.workspace import Finished, Workspace

# Waits for so many fifths of a second, unless it is released.
HOLD = """
for _ in $(seq $1); do
  for gate in released "released.${SLURM_JOB_ID:-$JOB_ID}"; do
    if [ -e "$(dirname "$0")/$gate" ]; then exit; fi
  done
  sleep 0.2
done
"""


class Night(abc.ABC):
    """One workspace on a cluster, and the jobs that were submitted since it began."""

    profile: str
    """The profile's name."""

    quick: tuple[str, ...]
    """Options with which snakemake looks at its jobs more often than it should on a real site."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._started: list[subprocess.Popen[str]] = []

    def stop(self) -> None:
        """End what a failed test has left: no snakemake that goes on to submit jobs."""
        for run in self._started:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
                run.wait()

    @abc.abstractmethod
    def starts(self) -> Counter[str]:
        """How often each job was submitted, as ``rule`` or ``rule shard``."""

    @abc.abstractmethod
    def running(self, job: str) -> list[int]:
        """The numbers of the running jobs of a rule, or of ``rule shard``."""

    @abc.abstractmethod
    def idle(self) -> bool:
        """Whether no job of this workspace waits or runs."""

    def run(self, *options: str, timeout: int = 240) -> Finished:
        """Run the main job to its end."""
        return self.workspace.run(*self.quick, *options, profile=self.profile, timeout=timeout)

    def start(self, *options: str) -> "subprocess.Popen[str]":
        """Start the main job; `output` has what it says."""
        self._started.append(self.workspace.start(*self.quick, *options, profile=self.profile))
        return self._started[-1]

    def held(self, limit_s: int = 600) -> tuple[str, str]:
        """Options under which each job waits at its begin for `release`, but not for longer.

        In a script of its own: schedulers' shells would fill in variables of a command too early.
        """
        (self.workspace.root / "hold.sh").write_text(HOLD)
        path = shlex.quote(str(self.workspace.root / "hold.sh"))
        return "--precommand", f"sh {path} {5 * limit_s}"

    def release(self, *jobs: int) -> None:
        """Let all jobs go on, those of later runs too; or some, by the scheduler's numbers."""
        for name in [f"released.{job}" for job in jobs] or ["released"]:
            (self.workspace.root / name).touch()

    def output(self) -> str:
        """What the main job said that was started last."""
        return (self.workspace.root / "run.log").read_text()

    def wait_for(self, what: str, true: Callable[[], object], timeout_s: float = 120) -> None:
        """Wait until something is true of the cluster."""
        end = time.monotonic() + timeout_s
        while not true():
            assert time.monotonic() < end, f"never happened: {what}; started: {self.starts()}"
            time.sleep(0.3)

    def folder_of(self, count: int) -> np.ndarray:
        """Write ``stack/``, a folder of small whole matrices, and return them as one array."""
        (self.workspace.root / "stack").mkdir()
        stack = np.random.default_rng(1).integers(-9, 9, (count, 5, 5)).astype(np.float64)
        for number, matrix in enumerate(stack):
            np.save(self.matrix(number), matrix)
        return stack

    def matrix(self, number: int) -> Path:
        """The file of one matrix in ``stack/``."""
        return self.workspace.root / "stack" / f"{number:03}.npy"

    def receipts(self) -> dict[str, dict]:
        """All receipts of the products, by shard."""
        found = [json.loads(p.read_text()) for p in self.workspace.file("products").glob("*.json")]
        return {receipt["shard"]: receipt for receipt in found}

    def uses(self, name: str) -> dict[str, int]:
        """How many shards each device had, by its node and `name` in receipts; one at a time."""
        return one_at_a_time(
            (f"{r['node']}/{r['device'][name]}", r["started"], r["finished"])
            for r in self.receipts().values()
        )

    def sum(self) -> np.ndarray:
        """What the reduce has written."""
        return self.workspace.load("sum.npy")

    def asked_by_a_dry_run(self, clients: Iterable[str], folder: Path) -> set[str]:
        """Those of a scheduler's commands that a dry run calls, when each of them only fails."""
        folder.mkdir()
        for client in clients:
            script = folder / client
            script.write_text(f"#!/bin/sh\necho {client} >>'{folder}/asked'; exit 1\n")
            script.chmod(0o755)
        env = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
        plan = Workspace(self.workspace.root, env).run("--dry-run", profile=self.profile)
        assert plan.code == 0, plan.output
        assert "rule multiply:" in plan.output
        asked = folder / "asked"
        return set(asked.read_text().split()) if asked.exists() else set()


def sum_of_squares(stack: np.ndarray) -> np.ndarray:
    """What the run must give; exact, as all numbers are whole."""
    return (stack @ stack).sum(axis=0)
