"""Situations of `dispatch: array` that are the same under every scheduler.

The fixture `night` is the importing module's own. These stop before the reduce, which is the same
job under every dispatch.
"""

import abc
import os
import shlex
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests import processes
from tests.night import FAULTY_SHARDS, Night, sum_of_squares

# Waits for a file that releases all tasks, or the one of a shard.
GATE = """
for _ in $(seq 3000); do
  for gate in released "released.$1"; do
    if [ -e "$(dirname "$0")/$gate" ]; then exit; fi
  done
  sleep 0.2
done
"""

MULTIPLY = ("--until", "multiply")
"""Options that end the run before the ledger."""


class ArrayNight(Night, abc.ABC):
    """A workspace under ``dispatch: array``, and its tasks."""

    config: str
    """The command that tells the cluster's settings."""

    @abc.abstractmethod
    def tasks(self, state: str) -> dict[str, str]:
        """The tasks that are ``running`` or ``waiting``: by shard, what cancels them."""

    @abc.abstractmethod
    def cancel(self, task: str) -> None:
        """Cancel a task."""

    @abc.abstractmethod
    def small(self) -> str:
        """What the cluster's settings are, but for arrays of four tasks at most."""

    @abc.abstractmethod
    def arrays(self) -> int:
        """How many arrays of this workspace the scheduler has taken."""

    def starts(self) -> Counter[str]:
        """How often each shard was started."""
        return self.journal()

    def running(self, job: str) -> list[int]:
        """Of no use here: see `tasks`."""
        raise NotImplementedError(job)

    def idle(self) -> bool:
        """Whether no task waits or runs."""
        return not self.tasks("running") and not self.tasks("waiting")

    def gated(self) -> tuple[str, str]:
        """Options under which each task waits for `open_gate` before it begins."""
        (self.workspace.root / "gate.sh").write_text(GATE)
        path = shlex.quote(str(self.workspace.root / "gate.sh"))
        return "--precommand", f'sh {path} "$shard"'

    def open_gate(self, *shards: str) -> None:
        """Let some shards go on, or all."""
        for name in [f"released.{shard}" for shard in shards] or ["released"]:
            (self.workspace.root / name).touch()

    def of(self, shards: int, **values: object) -> np.ndarray:
        """Configure a run of so many shards, a matrix each; returns the matrices."""
        stack = self.folder_of(shards)
        over = {"materialize": False, "dispatch": "array", **values}
        self.workspace.configure(input="stack", shards=shards, **over)
        return stack

    def log(self) -> str:
        """The log of the job that submits and waits."""
        path = self.workspace.file("logs/multiply/multiply.log")
        return path.read_text() if path.exists() else ""


def at_once(night: ArrayNight) -> int:
    """The most shards that were computed at the same time, by their receipts."""
    receipts = night.receipts().values()
    begins = [(r["started"], 1) for r in receipts]
    steps = sorted([*begins, *((r["finished"], -1) for r in receipts)])
    running = [0]
    for _, step in steps:
        running.append(running[-1] + step)
    return max(running)


def test_digits_have_the_same_bits(night: ArrayNight) -> None:
    """7 shards, three at once, copied by their own tasks: one array, and NumPy's very sum."""
    digits = load_digits().images
    np.save(night.workspace.root / "digits.npy", digits)
    night.workspace.configure(input="digits.npy", shards=7, dispatch="array", array_limit=3)
    done = night.run(*MULTIPLY)
    assert done.code == 0, done.output
    summed = night.workspace.run()  # the reduce is the same job under every dispatch: here, soon
    assert summed.code == 0, summed.output
    assert night.sum().tobytes() == sum_of_squares(digits).tobytes()
    assert night.starts() == Counter({f"{i:05}": 1 for i in range(7)})
    assert night.arrays() == 1
    assert at_once(night) <= 3
    assert "7 of 7 shards done" in done.output
    assert night.run().jobs == set(), "another run finds everything done"


@pytest.mark.fault("a job that is cancelled, SIGTERM, Ctrl-C")
def test_killed_tasks_are_tried_again_and_bad_ones_are_not(night: ArrayNight) -> None:
    """A cancelled task, a killed process, a NaN: the others finish, the end names the one lost."""
    stack = night.of(6)
    np.save(night.matrix(4), np.full((5, 5), np.nan))
    run = night.start(*MULTIPLY, *night.gated())
    night.wait_for("shard 00001 runs", lambda: "00001" in night.tasks("running"))
    night.cancel(night.tasks("running")["00001"])
    night.wait_for("it is tried again", lambda: "shard 00001: " in night.log())
    night.open_gate()
    assert run.wait(timeout=300) != 0
    assert set(night.receipts()) == {f"{i:05}" for i in range(6)} - {"00004"}
    assert night.starts()["00004"] == 1
    words = night.output()[night.output().index("shardwise: not finished: 5 of 6 shards") :]
    assert "00004: " in words
    assert "matrix 4 holds NaN or Inf" in words
    assert "00001" not in words

    np.save(night.matrix(4), stack[4])
    before = night.starts()
    done = night.run(*MULTIPLY)
    assert done.code == 0, done.output
    assert night.starts() - before == Counter({"00004": 1})


@pytest.mark.fault("a worker or task that is killed")
def test_a_task_that_is_killed_without_a_word_is_tried_again(night: ArrayNight) -> None:
    """All processes of a task end by SIGKILL, its script too: the scheduler's word decides."""
    night.of(2)
    run = night.start(*MULTIPLY, *night.gated())
    gate = f"{night.workspace.root}/gate.sh 00001"
    gates: set[int] = set()

    def at_the_gate() -> bool:  # the scheduler calls a task running before its script has begun
        gates.update(pid for pid in processes.running() if gate in _command(pid))
        return bool(gates) and len(night.tasks("running")) == 2

    night.wait_for("both run", at_the_gate)
    processes.kill([*processes.parents(gates), *gates])  # the scripts first: no last words
    night.wait_for("it is tried again", lambda: "shard 00001: the scheduler says" in night.log())
    night.open_gate()
    assert run.wait(timeout=300) == 0, night.output()
    assert night.starts() == Counter({"00000": 1, "00001": 1})


def _command(pid: int) -> str:
    """The command line of a process; empty once it has ended."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode(errors="replace")


@pytest.mark.fault("snakemake killed by -9 and started again")
@pytest.mark.fault("two runs at once")
def test_the_next_run_joins_what_a_killed_one_has_left(night: ArrayNight) -> None:
    """Snakemake dies, its waiting job ends quietly: the next run waits for the very same tasks."""
    night.of(5)
    run = night.start(*MULTIPLY, *night.gated())
    night.wait_for("tasks run", lambda: night.tasks("running"))
    run.kill()
    run.wait()
    night.wait_for("the job that waits ends", lambda: "has ended; the tasks work on" in night.log())
    assert night.run("--unlock").code == 0

    again = night.start(*MULTIPLY)
    night.wait_for("it joins them", lambda: "5 tasks of an earlier run" in night.log())
    assert night.run(*MULTIPLY, "--nolock").code == 75, "only one run at a time"
    night.open_gate()
    assert again.wait(timeout=300) == 0, night.output()
    assert night.starts() == Counter({f"{i:05}": 1 for i in range(5)})
    assert night.arrays() == 1


@pytest.mark.fault("two runs at once")
def test_tasks_of_another_plan_are_not_joined(night: ArrayNight) -> None:
    """A config that changes while tasks of a killed run live: refused, with how to cancel them."""
    night.of(3)
    run = night.start(*MULTIPLY, *night.gated())
    night.wait_for("tasks run", lambda: night.tasks("running"))
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    assert night.run("--unlock").code == 0
    night.workspace.configure(input="stack", shards=2, materialize=False, dispatch="array")
    refused = night.run(*MULTIPLY)
    assert refused.code == 75, refused.output
    assert "cancel them (" in refused.output


@pytest.mark.fault("a job that is cancelled, SIGTERM, Ctrl-C")
def test_ctrl_c_cancels_the_array(night: ArrayNight) -> None:
    """Interrupting snakemake empties the queue, and a rerun computes what is missing."""
    night.of(8)
    run = night.start(*MULTIPLY, *night.gated())
    night.wait_for("tasks run", lambda: night.tasks("running"))
    night.open_gate("00000")
    night.wait_for("one is done", night.receipts)
    os.killpg(run.pid, signal.SIGINT)
    assert run.wait(timeout=300) != 0
    night.wait_for("the queue is empty", night.idle)
    night.open_gate()
    done = night.run(*MULTIPLY)
    assert done.code == 0, done.output
    assert night.starts()["00000"] == 1
    assert len(night.receipts()) == 8


@pytest.mark.fault("a scheduler that answers nothing")
def test_a_scheduler_that_is_away_costs_nothing(night: ArrayNight) -> None:
    """Its answer to the submission is lost, then it says nothing: one array, one start a shard."""
    night.of(4)
    shims = night.shim()
    (shims / f"{night.submits}.mute").touch()
    run = night.start(*MULTIPLY, *night.gated())
    night.wait_for("it is found", lambda: "4 shards submitted" in night.log())
    assert "does not answer (the answer timed out)" in night.log()
    (shims / "away").touch()
    night.wait_for("it is said", lambda: night.silence in night.log())
    night.open_gate("00000")
    night.wait_for("one is done", night.receipts)
    (shims / "away").unlink()
    night.open_gate()
    assert run.wait(timeout=300) == 0, night.output()
    assert night.starts() == Counter({f"{i:05}": 1 for i in range(4)})
    assert night.arrays() == 1


@pytest.mark.fault("a scheduler that answers rubbish, or UNKNOWN")
@pytest.mark.fault("a submission that fails k times")
@pytest.mark.fault("a full queue")
@pytest.mark.fault("a poison shard")
@pytest.mark.fault("a host out of memory")
def test_many_faults_at_once(night: ArrayNight) -> None:
    """Submissions fail, answers are rubbish, shards die: the poisonous one is lost, no other."""
    stack = night.folder_of(FAULTY_SHARDS)
    product = night.faulty(stack)
    over = {"materialize": False, "dispatch": "array", "product": product}
    night.workspace.configure(input="stack", shards=FAULTY_SHARDS, **over)
    run = night.start_in_trouble(*MULTIPLY)
    assert run.wait(timeout=300) != 0
    output = night.output()
    assert "does not answer (" in output
    assert f"does not answer ({night.looks} printed " in output
    words = output[output.index("shardwise: not finished: 5 of 6 shards") :]
    assert "failed: multiply 00001: " in words
    tries = {"00001": 3, "00002": 2, "00003": 2}
    assert night.starts() == Counter({f"{i:05}": 1 for i in (0, 4, 5)} | tries)

    (night.workspace.root / "poison.over").touch()
    before = night.starts()
    done = night.run(*MULTIPLY)
    assert done.code == 0, done.output
    assert night.starts() - before == Counter({"00001": 1})
    products = [night.workspace.load(f"products/{i:05}.npy") for i in range(FAULTY_SHARDS)]
    assert np.array_equal(np.concatenate(products).sum(axis=0), sum_of_squares(stack))


def test_arrays_are_cut_where_the_cluster_wants_it(night: ArrayNight) -> None:
    """Nine shards where an array has four tasks: three arrays, and one limit for all of them."""
    night.of(9, array_limit=2)
    (night.shim() / f"{night.config}.says").write_text(night.small())
    done = night.run(*MULTIPLY)
    assert done.code == 0, done.output
    assert night.starts() == Counter({f"{i:05}": 1 for i in range(9)})
    assert night.arrays() == 3
    assert at_once(night) <= 2


def test_a_dry_run_asks_no_scheduler(night: ArrayNight, tmp_path: Path) -> None:
    """With commands that only fail, a dry run says what is missing, and submits or lists no job."""
    night.of(3)
    asked = night.asked_by_a_dry_run(night.clients, tmp_path / "bin")
    assert not asked - {"scontrol", "sacct"}, "Slurm's plugin asks these two as it is loaded"
