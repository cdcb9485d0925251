"""One results folder through many bad runs, and back to the right sum, all by a seed."""

import contextlib
import fcntl
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
from shardwise.plan import plan
from shardwise.records import missing

from tests import factories, fake_devices, processes
from tests.workspace import REPO, Finished, Workspace

SHARDS = 12
END_SECONDS = 600
"""Within which a run, and whatever it has started, has to end."""

REPAIRS = 10
"""Undisturbed runs after which the sum has to be there: each may name other damage."""

TRIES = 3
"""Of a shard under pool and mpi. In profiles/local a job that failed is tried once more."""

PRODUCT_LIMIT = 4500
"""Bytes of a file on a disk that is full: receipts fit, products do not."""

_CURES = (
    re.compile(r"(rm (?:-f )?[^\n]*?), then snakemake as before"),
    re.compile(r"ERROR (\S+): [^\n]*; remove it and run snakemake again"),
)


@dataclass(frozen=True)
class Way:
    """How a run is started: whole snakemake or scripts by hand, under a dispatch."""

    whole: bool
    dispatch: str


class Soak:
    """A copy of the project with one plan, and what has been done to it.

    Parameters
    ----------
    seed
        Decides on the faults; the moments of kills depend on the machine as well.
    """

    def __init__(self, root: Path, seed: int) -> None:
        self.random = Random(seed)
        self._devices = fake_devices.environment(2, root / "leases")
        path = f"{REPO}:{self._devices['PYTHONPATH']}"
        env = os.environ | self._devices | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        self.workspace = Workspace.create(root, env)
        stack = factories.stack((2 * SHARDS, 6, 6), "float64", seed)
        np.save(root / "input.npy", stack)
        self.expected = (stack @ stack).sum(axis=0)
        self._configure("jobs")
        done = self._planned()
        assert done.returncode == 0, done.stderr
        self.plan = plan.load(self.workspace.file("plan.tsv"))
        self.history: list[str] = []

    def _configure(self, dispatch: str) -> None:
        over = {"input": "input.npy", "shards": SHARDS, "dispatch": dispatch}
        self.workspace.configure(**over)

    def _planned(self) -> subprocess.CompletedProcess:
        line = [sys.executable, "scripts/plan.py", "--configfile", "config.yaml", "mine.yaml"]
        own = {"cwd": self.workspace.root, "env": self.workspace.env}
        return subprocess.run(line, capture_output=True, text=True, check=False, **own)

    # Runs.

    def disturbed(self, way: Way) -> None:
        """A run with a fault on the way; whatever it ends with, no finished shard starts again."""
        fault = self.random.choice(("kill", "kill", "kill", "full disk"))
        limit = PRODUCT_LIMIT if fault == "full disk" else None
        strike = self._strike if fault == "kill" else None
        before, whole = self.starts(), self.whole()
        self._note(f"{way}, {fault}")
        self._run(way, limit, strike)
        self._check_starts(before, whole, most=TRIES * (2 if way.whole else 1))

    def healed(self, way: Way) -> None:
        """Undisturbed runs, and what their messages say is to be done, until there is a sum."""
        tries = 2 if way.whole else 1
        for _ in range(REPAIRS):
            before, whole = self.starts(), self.whole()
            self._note(f"{way}, undisturbed")
            done = self._run(way)
            self._check_starts(before, whole, most=1 if done.code == 0 else tries)
            if done.code == 0:
                return
            self._obey(done, way)
        raise AssertionError(f"no sum after {REPAIRS} runs\n{self.told()}\n{done.output}")

    def _run(
        self,
        way: Way,
        limit: int | None = None,
        strike: Callable[["subprocess.Popen[bytes]"], None] | None = None,
    ) -> Finished:
        """Run to the end of all processes; a fault may strike meanwhile."""
        log = self.workspace.root.parent / "run.log"  # read by a process that is never full
        with open(log, "wb") as sink:
            reader = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=sink)
        run = subprocess.Popen(
            self._line(way),
            cwd=self.workspace.root,
            env=self.workspace.env,
            stdout=reader.stdin,
            stderr=reader.stdin,
            start_new_session=True,
            preexec_fn=lambda: _begin(limit),  # noqa: PLW1509 - no threads
        )
        try:
            if strike:
                strike(run)
            run.wait(timeout=END_SECONDS)
            processes.until(lambda: not self.living(), END_SECONDS)
        finally:
            left = {pid: " ".join(processes.words(pid)) for pid in self.living()}
            processes.kill(left)
            run.wait()
            reader.communicate()
        self._check_locks()
        return Finished(run.returncode, log.read_text(errors="replace"))

    def _line(self, way: Way) -> list[str]:
        ranks = self.random.choice("12")
        if not way.whole:
            program = [sys.executable, "-m", "tests.faults.tasks"]
            if not self.plan.results.plan_facts.exists() or not self.plan.results.plan.exists():
                assert self._planned().returncode == 0
            return [*program, "results/default/plan.tsv", way.dispatch, ranks]
        self._configure(way.dispatch)
        return self.workspace.command("--cores", "2", "--latency-wait", "2")

    def _strike(self, run: "subprocess.Popen[bytes]") -> None:
        """Kill something of a run at some moment: after so many starts, and a little later."""
        random = self.random
        number = random.choice((signal.SIGKILL, signal.SIGTERM))
        whom = random.choice(("all", "the command", "one", "one"))
        wanted, later = random.randrange(SHARDS), random.random()
        before = sum(self.starts().values())
        processes.until(
            lambda: run.poll() is not None or sum(self.starts().values()) - before >= wanted,
            END_SECONDS,
        )
        time.sleep(later)
        living = sorted(self.living())
        one = living[int(random.random() * len(living)) :][:1]
        victims = {"all": living, "the command": [run.pid], "one": one}[whom]
        shown = [" ".join(processes.words(pid))[-80:] for pid in victims]
        self._note(f"  {number.name} to {whom} after {wanted} starts + {later:.2f} s: {shown}")
        if run.poll() is None or whom != "the command":
            for pid in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _obey(self, done: Finished, way: Way) -> None:
        """Do what a message says, as a user would; one that says nothing is a fault."""
        if way.whole and "--unlock" in done.output:
            unlocked = self.workspace.run("--unlock")
            assert unlocked.code == 0, unlocked.output
            return
        commands = set(_CURES[0].findall(done.output))
        commands |= {f"rm {shlex.quote(path)}" for path in _CURES[1].findall(done.output)}
        assert commands, f"a message without a cure\n{self.told()}\n{done.output}"
        for command in sorted(commands):
            self._note(f"  told to: {command}")
            subprocess.run(["bash", "-c", command], cwd=self.workspace.root, check=True)

    # Damage between runs.

    def damage(self) -> None:
        """Take work away, so that there is some; and hurt up to three files, time stamps kept."""
        results = self.plan.results
        for path in (results.statistic("sum"), results.summary):
            path.unlink(missing_ok=True)
        for shard in self.random.sample(list(self.plan.shards), self.random.randrange(1, 8)):
            path = self.random.choice((results.product, results.receipt))(shard)
            path.unlink(missing_ok=True)
        for _ in range(self.random.randrange(4)):
            path = self._any_file()
            how = self.random.choice((_flip, _cut, _remove))
            if path.exists():
                self._note(f"{how.__name__[1:]} {path.name} in {path.parent.name}")
                how(path, self.random)

    def _any_file(self) -> Path:
        results, shard = self.plan.results, self.random.choice(list(self.plan.shards))
        each = (results.product, results.receipt, results.shard, results.shard_receipt)
        return self.random.choice([*(name(shard) for name in each), results.ledger])

    # What must hold.

    def check(self) -> None:
        """The sum has the bits that it has without faults, and nothing is left."""
        found = self.workspace.load("sum.npy")
        assert found.tobytes() == self.expected.tobytes(), self.told()
        assert set(self.whole()) == set(self.plan.shards), self.told()
        left = factories.leftovers(self.workspace.file(""))
        assert not left, f"{left}\n{self.told()}"
        assert not self.plan.results.partial.exists(), self.told()

    def _check_starts(self, before: dict[str, int], whole: set[str], most: int) -> None:
        """No shard that was whole has been started, and no other too often."""
        for shard, count in self.starts().items():
            more = count - before.get(shard, 0)
            allowed = 0 if shard in whole else most
            assert more <= allowed, f"shard {shard} was started {more} times\n{self.told()}"

    def _check_locks(self) -> None:
        """Nobody holds a lock or a lease any more."""
        files = [*self.workspace.file("logs").glob("*.lock")]
        files += Path(self._devices["SHARDWISE_LEASES"]).glob("*.lease")
        for path in files:
            with open(path, "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def starts(self) -> dict[str, int]:
        """How often each shard was begun."""
        found = self.plan.results.starts("-").parent.glob("*.starts")
        return {path.stem: path.read_text().count("\n") for path in found}

    def whole(self) -> set[str]:
        """The shards with a product and a receipt of this plan, as far as one sees."""
        return set(self.plan.shards) - set(missing.list_missing(self.plan))

    def living(self) -> set[int]:
        """All processes of this workspace, whatever started them."""
        leases = self._devices["SHARDWISE_LEASES"]
        return {
            pid
            for pid in processes.living(processes.running())
            if processes.environment(pid).get("SHARDWISE_LEASES") == leases
        }

    def _note(self, text: str) -> None:
        self.history.append(text)

    def told(self) -> str:
        """What was done so far."""
        return json.dumps(self.history, indent=1)


def _begin(limit: int | None) -> None:
    processes.heed_interrupts()
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


def _flip(path: Path, random: Random) -> None:
    """Change one bit; the time stamp stays."""
    raw, found = bytearray(path.read_bytes()), path.stat()
    raw[random.randrange(len(raw))] ^= 1 << random.randrange(8)
    path.write_bytes(raw)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def _cut(path: Path, random: Random) -> None:
    """Cut a file off; the time stamp stays."""
    found = path.stat()
    os.truncate(path, random.randrange(found.st_size))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def _remove(path: Path, _: Random) -> None:
    path.unlink()
