"""A run in one of `tests.places` whose shards wait at a gate, and the faults that may meet it."""

import json
import os
import shlex
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from shardwise.files.paths import Results
from shardwise.records import locks

from tests import processes
from tests.clusters.cluster import Job
from tests.factories import stack
from tests.workspace import Finished, Workspace

# A shard reports where it is computed, waits at the gate, and may then meet a fault: "memory" and
# "killed" strike once, any other every time. The corner of a matrix is the number of its shard.
GATED = """
import os, re, signal, socket, time
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "default"
before = []

def square(xp, block):
    if "SHARDWISE_RUN" in os.environ:  # else the function is tried
        shard = f"{int(block[0, 0, 0]):05}"
        wait_at_the_gate(shard)
        meet(shard, xp)
        before.append(shard)
    return block @ block

def until(true):
    end = time.monotonic() + 600
    while not true():
        assert time.monotonic() < end, "it never happens"
        time.sleep(0.1)

def wait_at_the_gate(shard):
    env = os.environ | {"PID": str(os.getpid())}
    forms = ("{SLURM_ARRAY_JOB_ID}_{SLURM_ARRAY_TASK_ID}", "{SLURM_JOB_ID}",
             "{JOB_ID}.{SGE_TASK_ID}", "{PID}")
    form = next(form for form in forms if set(re.findall("{(.*?)}", form)) <= set(env))
    handle = form.format_map(env).removesuffix(".undefined")
    node = env.get("SLURMD_NODENAME") or socket.gethostname()
    device = env.get("CUDA_VISIBLE_DEVICES", "none")
    (HERE / f"at.{shard}.tmp").write_text(f"{handle} {os.getpid()} {node} {device}")
    (HERE / f"at.{shard}.tmp").rename(HERE / f"at.{shard}")
    until(lambda: any((HERE / name).exists() for name in ("open", f"open.{shard}")))

def meet(shard, xp):
    fault = HERE / f"fault.{shard}"
    kind = fault.read_text() if fault.exists() else ""
    if kind in ("memory", "killed"):
        fault.unlink()
    if kind == "memory":
        xp.empty(2**60, "u1")
    if kind:  # what this process has computed before is to be written: else it is lost as well
        until(lambda: all([*RESULTS.glob(f"products/{one}-*.json")] for one in before))
        os.kill(os.getpid(), signal.SIGKILL)
"""

SHIM = """\
#!/bin/sh
case " $* " in *" --test-only "* | *" -w v "*) exec {real} "$@" ;; esac
if [ -s {folder}/{command}.next ]; then
  answer=$(flock {folder} sh -c 'head -n 1 "$0"; sed -i 1d "$0"' {folder}/{command}.next)
  case "$answer" in
    "") ;; # another took the last one meanwhile
    "0 "*) echo "${{answer#0 }}"; exit ;;
    *) echo "${{answer#* }}" >&2; exit "${{answer%% *}}" ;;
  esac
fi
exec {real} "$@"
"""
"""A script in front of a scheduler's command: it first gives the answers in ``COMMAND.next``.

Asking whether the cluster would take a job uses up no answer.
"""


class Night:
    """One workspace in a place, and the jobs that were submitted since it began."""

    def __init__(self, cluster: Any, root: Path) -> None:
        self.workspace = Workspace.create(
            root, cluster.env() | cluster.variables, cluster.enter(root)
        )
        self.root, self.cluster, self.newest = root, cluster, cluster.newest()
        self.stack, self.own = np.empty(0), dict[str, object]()
        self.product: Callable[..., np.ndarray] = lambda stack: stack @ stack
        self._started: list[subprocess.Popen[str]] = []
        self.bad: list[int] = []

    def stop(self, number: signal.Signals) -> None:
        """End all that a failed test has left: every snakemake that still runs, and every job."""
        for run in self._started:
            if run.poll() is None:
                os.killpg(run.pid, number)
                run.wait()
        self.cluster.cancel_all()

    # Configure a run, its faults and its devices.

    def gated(self, shards: int, dispatch: str = "jobs", **over: object) -> None:
        """Configure a run of small matrices, each a shard that waits for `open`."""
        (self.root / "gated.py").write_text(GATED)
        self.configure(shards, dispatch=dispatch, **{"product": "gated.py:square"} | over)

    def configure(self, shards: int, **over: object) -> None:
        """Configure a run over a folder of matrices of whole numbers, each a shard."""
        self.stack = stack((shards, 5, 5), "float64", seed=1)
        self.stack[:, 0, 0] = range(shards)
        (self.root / "stack").mkdir()
        for number, matrix in enumerate(self.stack):
            np.save(self.matrix(number), matrix)
        self.own = {"input": "stack", "shards": shards, "materialize": False} | over
        self.workspace.configure(**self.own)

    def matrix(self, number: int) -> Path:
        return self.root / "stack" / f"{number:03}.npy"

    def spoil(self, number: int) -> None:
        self.bad.append(number)
        bad = self.stack[number].copy()
        bad[1, 1] = np.nan
        np.save(self.matrix(number), bad)

    def heal(self) -> None:
        """Remove all faults, and let all shards go."""
        for number in self.bad:
            np.save(self.matrix(number), self.stack[number])
        for path in (*self.root.glob("fault.*"), *self.root.glob("shims/*.next")):
            path.unlink()
        self.open()

    def shim(self) -> Path:
        """Put `SHIM` in front of the scheduler's commands; return the folder that steers them.

        Each line of ``COMMAND.next`` is one answer, an exit code and a text.
        """
        folder, env = self.root / "shims", self.workspace.env
        scripts = {}
        for command in self.cluster.clients:
            real = shutil.which(command, path=env["PATH"])
            at = {"folder": shlex.quote(str(folder)), "real": shlex.quote(str(real))}
            scripts[command] = SHIM.format(command=command, **at)
        env["PATH"] = processes.commands(folder, env["PATH"], **scripts)
        return folder

    # Runs.

    def run(self, *options: str) -> Finished:
        """Run the main job to its end."""
        return self.workspace.run(*self.cluster.quick, *options, profile=self.cluster.profile)

    def start(self, *options: str) -> "subprocess.Popen[str]":
        """Start the main job; `output` has what it says."""
        line = (*self.cluster.quick, *options)
        self._started.append(self.workspace.start(*line, profile=self.cluster.profile))
        return self._started[-1]

    def output(self) -> str:
        return (self.root / "run.log").read_text()

    def finish(self) -> None:
        """Compute what is missing on this machine, which is fast, and check the sum."""
        self.workspace.configure(**self.own | {"dispatch": "pool"})
        done = self.workspace.run("--until", "reduce")
        assert done.code == 0, done.output
        self.check_sum()

    def check_sum(self) -> None:
        """Check that the sum equals NumPy's to the bit, as it must if all numbers are whole."""
        total = self.product(self.stack).astype(float).sum(axis=0)
        assert self.workspace.load("sum.npy").tobytes() == total.tobytes()

    # Look at what a run has done.

    def at_gate(self, node: str = "") -> dict[str, str]:
        """The shards that wait for `open`, each with the handle that cancels its task."""
        said = {path.suffix[1:]: path.read_text().split() for path in self.root.glob("at.?????")}
        living = processes.living(int(words[1]) for words in said.values())
        return {shard: handle for shard, (handle, pid, where, _) in said.items()
                if int(pid) in living and node in where}  # fmt: skip

    def process(self, shard: str) -> int:
        return int((self.root / f"at.{shard}").read_text().split()[1])

    def open(self, *shards: str) -> None:
        """Let some shards go on, or all."""
        for name in [f"open.{shard}" for shard in shards] or ["open"]:
            (self.root / name).touch()

    def jobs(self, state: str = "") -> list[Job]:
        """The jobs of this workspace in a state, or all; under ``dispatch: array`` only tasks."""
        array = self.own.get("dispatch") == "array"
        own = [job for job in self.cluster.jobs() if job.number > self.newest]
        return [job for job in own if job.in_array >= array and job.state.startswith(state)]

    def idle(self) -> bool:
        """Whether no job of this workspace waits, runs or is being cancelled, and no run lives."""
        return self.cluster.idle(self.newest) and not locks.is_living(
            Results(self.workspace.file(""))
        )

    def wait_for(self, what: str, true: Callable[[], object]) -> None:
        processes.until(true, 240, lambda: f"{what}\n{self.cluster.report()}", pause_s=0.3)

    def receipts(self) -> dict[str, dict]:
        found = [json.loads(p.read_text()) for p in self.workspace.file("products").glob("*.json")]
        return {receipt["shard"]: receipt for receipt in found}

    def starts(self) -> Counter[str]:
        """How often each shard was begun; a shard that succeeds at once keeps no journal."""
        journals = self.workspace.file("logs/multiply").glob("*.starts")
        begun = {path.stem[:5]: path.read_text().count("\n") for path in journals}
        return Counter(dict.fromkeys(self.receipts(), 1) | begun)
