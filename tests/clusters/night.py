"""What the main job's tests on real schedulers share: a workspace, its jobs, and their waiting."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests import fake_devices
from tests.clusters.cluster import Cluster, Submitted
from tests.uses import one_at_a_time
from tests.workspace import Finished, Workspace

# Waits until it is released, ten minutes at most.
HOLD = """
for _ in $(seq 3000); do
  for gate in released "released.${SLURM_JOB_ID:-$JOB_ID}"; do
    if [ -e "$(dirname "$0")/$gate" ]; then exit; fi
  done
  sleep 0.2
done
"""

FAULTY_SHARDS = 6
"""So many has a run whose shards 1 to 3 have a fault each."""

SHIM = """\
#!/bin/sh
case " $* " in *" --test-only "* | *" -w v "*) exec {real} "$@" ;; esac
if [ -s {folder}/{command}.next ]; then
  answer=$(flock {folder} sh -c 'head -n 1 "$0"; sed -i 1d "$0"' {folder}/{command}.next)
  case "$answer" in
    "") ;;
    UNKNOWN) {real} "$@" | sed 's/RUNNING\\|CANCELLED/UNKNOWN/'; exit ;;
    "0 "*) echo "${{answer#0 }}"; exit ;;
    *) echo "${{answer#* }}" >&2; exit "${{answer%% *}}" ;;
  esac
fi
exec {real} "$@"
"""
"""In front of a scheduler's command: it answers what is asked for."""

# The fault of a matrix stands in its corner. Lack of memory and a kill pass, a poison does not.
# A process waits for what it has computed before to be written: else that would be lost with it.
FAULTY = """
import os
import signal
import time
from pathlib import Path

HERE = Path(__file__).parent
before = []

def square(xp, block):
    corner = int(block[0, 0, 0])
    fault = {101: "poison", 102: "memory", 103: "killed"}.get(corner)
    if fault and not (HERE / f"{fault}.over").exists():
        if fault != "poison":
            (HERE / f"{fault}.over").touch()
        if fault == "memory":
            xp.empty(2**60, "u1")
        products, end = HERE / "results/default/products", time.monotonic() + 60
        while not all(list(products.glob(f"{shard:05}-*.json")) for shard in before):
            assert time.monotonic() < end, "what was computed is never written"
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    before.append(corner % 100)
    return block @ block
"""


class Night:
    """One workspace on a cluster, and the jobs that were submitted since it began."""

    def __init__(self, cluster: Cluster, root: Path) -> None:
        env = cluster.env() | cluster.variables
        self.workspace = Workspace.create(root, env, cluster.enter(root))
        self.cluster = cluster
        self._started: list[subprocess.Popen[str]] = []
        self._newest = cluster.newest()

    def stop(self) -> None:
        """End what a failed test has left: no snakemake that goes on, and no job."""
        for run in self._started:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
                run.wait()
        self.cluster.cancel_all()

    def jobs(self) -> list[Submitted]:
        """The jobs of this workspace, those that have ended too."""
        return self.cluster.submitted(self._newest)

    def starts(self) -> Counter[str]:
        """How often each job was submitted, as ``rule`` or ``rule shard``."""
        return Counter(job.what for job in self.jobs())

    def in_state(self, state: str, what: str = "", node: str = "") -> list[Submitted]:
        """The jobs that are ``waiting`` or ``running``: those of a rule, or of ``rule shard``."""
        found = [job for job in self.jobs() if job.state == state and node in job.node]
        return [job for job in found if f"{job.what} ".startswith(f"{what} " if what else "")]

    def running(self, what: str = "") -> list[Submitted]:
        """The running jobs."""
        return self.in_state("running", what)

    def idle(self) -> bool:
        """Whether no job of this workspace waits or runs, or is being cancelled."""
        return all(job.state == "ended" for job in self.jobs())

    def run(self, *options: str, timeout: int = 500) -> Finished:
        """Run the main job to its end."""
        return self.workspace.run(
            *self.cluster.quick, *options, profile=self.cluster.profile, timeout=timeout
        )

    def start(self, *options: str) -> "subprocess.Popen[str]":
        """Start the main job; `output` has what it says."""
        self._started.append(
            self.workspace.start(*self.cluster.quick, *options, profile=self.cluster.profile)
        )
        return self._started[-1]

    def held(self) -> tuple[str, str]:
        """Options under which each job waits at its begin for `release`.

        In a script of its own: schedulers' shells would fill in variables of a command too early.
        """
        (self.workspace.root / "hold.sh").write_text(HOLD)
        path = shlex.quote(str(self.workspace.root / "hold.sh"))
        return "--precommand", f"sh {path}"

    def with_devices(self, count: int, folder: Path) -> tuple[str, str]:
        """Options under which each node has so many devices that do not exist."""
        fake = fake_devices.environment(count, folder / "leases")
        exported = shlex.join(f"{name}={value}" for name, value in fake.items())
        return "--precommand", f"export {exported}"

    def release(self, *jobs: Submitted) -> None:
        """Let all jobs go on, those of later runs too; or some."""
        for name in [f"released.{job.job}" for job in jobs] or ["released"]:
            (self.workspace.root / name).touch()

    def killed(self, run: "subprocess.Popen[str]") -> None:
        """Kill a run of snakemake by -9, and take its lock away, as a user would."""
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        assert self.run("--unlock").code == 0

    def output(self) -> str:
        """What the main job said that was started last."""
        return (self.workspace.root / "run.log").read_text()

    def wait_for(self, what: str, true: Callable[[], object], timeout_s: float = 240) -> None:
        """Wait until something is true of the cluster."""
        end = time.monotonic() + timeout_s
        while not true():
            assert time.monotonic() < end, (
                f"never happened: {what}; started: {self.starts()}\n{self.cluster.report()}"
            )
            time.sleep(0.3)

    def folder_of(self, count: int) -> np.ndarray:
        """Write ``stack/``, a folder of small whole matrices, and return them as one array."""
        (self.workspace.root / "stack").mkdir()
        stack = np.random.default_rng(1).integers(-9, 9, (count, 5, 5)).astype(np.float64)
        stack[:, 0, 0] = range(count)
        for number, matrix in enumerate(stack):
            np.save(self.matrix(number), matrix)
        return stack

    def faulty(self, stack: np.ndarray) -> str:
        """Put three faults into ``stack/``: the first matrices of shards 1 to 3 bring them about.

        One kills its process as often as it is computed, until there is a file ``poison.over``;
        one finds no memory at the first try, one is killed at the first.
        """
        first = len(stack) // FAULTY_SHARDS
        for number, corner in enumerate((101, 102, 103), 1):
            stack[number * first, 0, 0] = corner
            np.save(self.matrix(number * first), stack[number * first])
        (self.workspace.root / "faulty.py").write_text(FAULTY)
        return "faulty.py:square"

    def journal(self) -> Counter[str]:
        """How often each shard was begun; a journal of one attempt goes when that succeeds."""
        journals = self.workspace.file("logs/multiply").glob("*.starts")
        begun = {path.stem[:5]: path.read_text().count("\n") for path in journals}
        return Counter(dict.fromkeys(self.receipts(), 1) | begun)

    def shim(self) -> Path:
        """Put scripts in front of the scheduler's commands, and return the folder that steers them.

        ``COMMAND.next`` has a line an answer, of an exit code and a text; of ``UNKNOWN`` the jobs
        are told, but not how they are. A question whether the cluster would take a job takes none.
        """
        folder = self.workspace.root / "shims"
        folder.mkdir()
        env = self.workspace.env
        assert env is not None
        for command in self.cluster.clients:
            real = shutil.which(command, path=env["PATH"])
            assert real, f"{command} is not there"
            words = {"folder": shlex.quote(str(folder)), "real": shlex.quote(real)}
            (folder / command).write_text(SHIM.format(command=command, **words))
            (folder / command).chmod(0o755)
        env["PATH"] = f"{folder}:{env['PATH']}"
        return folder

    def start_in_trouble(self, *options: str) -> "subprocess.Popen[str]":
        """Start a run whose first three submissions fail, the last for want of room.

        After the first, the looks at the queue that follow get two answers of no sense.
        """
        shims = self.shim()
        refused = [f"1 {self.cluster.silence}"] * 2 + [self.cluster.full]
        (shims / f"{self.cluster.submits}.next").write_text(
            "".join(f"{line}\n" for line in refused)
        )
        run = self.start(*options)
        left = shims / f"{self.cluster.submits}.next"
        self.wait_for("a submission fails", lambda: len(left.read_text().splitlines()) < 3)
        (shims / f"{self.cluster.looks}.next").write_text("0 <html>busy</html>\n0 what?\n")
        return run

    def matrix(self, number: int) -> Path:
        """The file of one matrix in ``stack/``."""
        return self.workspace.root / "stack" / f"{number:03}.npy"

    def receipts(self) -> dict[str, dict]:
        """All receipts of the products, by shard."""
        found = [json.loads(p.read_text()) for p in self.workspace.file("products").glob("*.json")]
        return {receipt["shard"]: receipt for receipt in found}

    def uses(self) -> dict[str, int]:
        """How many shards each device had, by its node and UUID in receipts; one at a time."""
        return one_at_a_time(
            (f"{r['node']}/{r['device']['uuid']}", r["started"], r["finished"])
            for r in self.receipts().values()
        )

    def products(self) -> np.ndarray:
        """All products, in the order of their matrices."""
        files = sorted(self.workspace.file("products").glob("*.npy"))
        return np.concatenate([np.load(file) for file in files])

    def sum(self) -> np.ndarray:
        """What the reduce has written."""
        return self.workspace.load("sum.npy")

    def asked_by_a_dry_run(self, folder: Path) -> set[str]:
        """Those of the scheduler's commands that a dry run calls, when each of them only fails."""
        folder.mkdir()
        for client in self.cluster.clients:
            script = folder / client
            script.write_text(f"#!/bin/sh\necho {client} >>'{folder}/asked'; exit 1\n")
            script.chmod(0o755)
        env = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
        plan = Workspace(self.workspace.root, env).run("--dry-run", profile=self.cluster.profile)
        assert plan.code == 0, plan.output
        assert "rule multiply:" in plan.output
        asked = folder / "asked"
        return set(asked.read_text().split()) if asked.exists() else set()


GATED = """
import os, socket, time
from pathlib import Path

HERE = Path(__file__).parent

def square(xp, block):
    env = os.environ
    task = "{SLURM_ARRAY_JOB_ID}_{SLURM_ARRAY_TASK_ID}" if "SLURM_JOB_ID" in env else (
        "{JOB_ID}.{SGE_TASK_ID}" if "JOB_ID" in env else "")
    if task:  # not where the function is tried before the plan is made
        wait_at_the_gate(f"{int(block[0, 0, 0]):05}", task.format_map(env))
    return block @ block

def wait_at_the_gate(shard, task):
    (HERE / f"at.{shard}").write_text(f"{task} {os.getpid()}")
    end = time.monotonic() + 600
    while not any((HERE / name).exists() for name in ("released", f"released.{shard}")):
        assert time.monotonic() < end, "nobody opens the gate"
        time.sleep(0.2)
"""
"""A product whose task waits for `ArrayNight.open_gate`; the corner of a matrix names its shard."""

MULTIPLY = ("--until", "multiply")
"""Options that end the run before the ledger."""


class ArrayNight(Night):
    """A workspace under ``dispatch: array``; its jobs are the tasks, each named by its index."""

    def jobs(self) -> list[Submitted]:
        """The tasks of this workspace, as far as the scheduler knows them."""
        return self.cluster.tasks(self._newest)

    def starts(self) -> Counter[str]:
        """How often each shard was started."""
        return self.journal()

    def waiting(self) -> list[str]:
        """What cancels the tasks that wait in the queue."""
        return [task.handle for task in self.in_state("waiting")]

    def at_gate(self, node: str = "") -> dict[str, str]:
        """The shards that wait for `open_gate`: what cancels the task of each."""
        running = {task.handle for task in self.in_state("running", node=node)}
        found = {path.suffix[1:]: path.read_text() for path in self.workspace.root.glob("at.*")}
        tasks = {shard: text.split()[0] for shard, text in found.items() if text}
        return {shard: task for shard, task in tasks.items() if task in running}

    def process(self, shard: str) -> int:
        """The process that waits for `open_gate` with a shard."""
        return int((self.workspace.root / f"at.{shard}").read_text().split()[1])

    def arrays(self) -> int:
        """How many arrays of this workspace the scheduler has taken."""
        return len({task.job for task in self.jobs()})

    def open_gate(self, *shards: str) -> None:
        """Let some shards go on, or all."""
        for name in [f"released.{shard}" for shard in shards] or ["released"]:
            (self.workspace.root / name).touch()

    def gated(self, shards: int) -> np.ndarray:
        """Configure a run as `of`, whose shards wait for `open_gate`."""
        (self.workspace.root / "gated.py").write_text(GATED)
        return self.of(shards, product="gated.py:square")

    def of(self, shards: int, **values: object) -> np.ndarray:
        """Configure a run of so many shards, a matrix each; returns the matrices."""
        stack = self.folder_of(shards)
        over = {"materialize": False, "dispatch": "array", **values}
        self.workspace.configure(input="stack", shards=shards, **over)
        return stack

    def log(self) -> str:
        """The log of the job that submits and waits."""
        missing = "[0-9a-f]" * 12
        found = self.workspace.file("logs/multiply").glob(f"{missing}.log")
        return "".join(path.read_text() for path in sorted(found, key=os.path.getmtime))

    def at_once(self) -> int:
        """The most processes that computed at the same time, by their receipts."""
        receipts = self.receipts().values()
        return max(
            len({r["process"] for r in receipts if r["started"] <= now < r["finished"]})
            for now in [r["started"] for r in receipts]
        )


def sum_of_squares(stack: np.ndarray) -> np.ndarray:
    """What the run must give; exact, as all numbers are whole."""
    return (stack @ stack).sum(axis=0)
