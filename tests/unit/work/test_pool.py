"""Workers of one node: what becomes of shards, processes and devices if one dies."""

import os
import signal
import socket
import subprocess
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
from shardwise.errors import TryAgain
from shardwise.plan.plan import Plan
from shardwise.records import failures
from shardwise.records.failures import Failure
from shardwise.records.store import Store
from shardwise.work import dispatch
from shardwise.work.pool import heard, heed
from shardwise.work.worker import suffices

from tests import factories, fake_devices, processes

SHARDS = 12

# A user's product: the square, after ``trouble``, code of a test that gets the matrix's corner.
FUNCTION = """
import os, pathlib, signal, sys, time

HERE = pathlib.Path(__file__).parent

def until(true):
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "never happened"
        time.sleep(0.01)

def once(name):
    if (HERE / name).exists():
        return False
    (HERE / name).touch()
    return True

def square(xp, block):
    if (HERE / "begun").exists():  # not where the function is tried before the plan is made
        trouble(int(block[0, 0, 0]))
    return block @ block

def trouble(first):
"""


def planned(folder: Path, trouble: str = "pass", **over: object) -> Plan:
    """A plan of shards of two matrices; before each, ``trouble`` gets its ``first`` one."""
    body = "".join(f"    {line}\n" for line in trouble.splitlines())
    (folder / "own.py").write_text(FUNCTION + body)
    left = factories.stack((2 * SHARDS, 6, 6), "float64")
    left[:, 0, 0] = np.arange(2 * SHARDS)
    keys = {"product": f"{folder / 'own.py'}:square", "shards": SHARDS, "materialize": False}
    made = factories.plan(folder, left, **keys | over)
    (folder / "begun").touch()
    return made


def started(
    made: Plan, *words: object, devices: int = 2, stage: str = "dispatch", **variables: str
) -> subprocess.Popen:
    """Start a pool, or another stage, on some fake devices."""
    folder = made.results.root.parent
    environ = os.environ | fake_devices.environment(devices, folder / "leases") | variables
    return subprocess.Popen(
        factories.command(stage, "--plan", made.results.plan, *words),
        stderr=subprocess.PIPE, text=True, env=environ, cwd=folder,
        preexec_fn=processes.heed_interrupts,  # noqa: PLW1509 - no threads
    )  # fmt: skip


def ended(run: subprocess.Popen, code: int) -> str:
    """Wait for the end of a pool, with this code; return what it said."""
    said = run.communicate(timeout=120)[1]
    assert run.returncode == code, said
    return said


def pooled(made: Plan, *words: object, code: int = 0, **given: object) -> str:
    """Compute what is missing, see `started`; return what the pool said."""
    return ended(started(made, *words, **given), code)


def is_right(made: Plan) -> bool:
    """Whether the products are the squares of all matrices."""
    left = np.load(made.results.root.parent / "input.npy")
    return bool((factories.products(made) == left @ left).all())


def whole(made: Plan) -> set[int]:
    """The numbers of the shards that are done."""
    return {int(shard) for shard in made.shards if Store(made).is_whole(shard)}


def failed(made: Plan) -> dict[int, Failure]:
    """The failures of missing shards, by number; a worker may die before it removes another."""
    rows = [made.shards[shard] for shard in Store(made).missing()]
    found = {int(row.shard): failures.read(made.results.failure(row.name)) for row in rows}
    return {number: failure for number, failure in found.items() if failure}


def fake_uuid(number: int) -> str:
    """The UUID of a fake device."""
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{socket.gethostname()} {number}')}"


@pytest.mark.fault("a poison shard")
@pytest.mark.fault("a worker or task that is killed")
@pytest.mark.parametrize("devices", [1, factories.nightly(2)])
def test_a_poison_shard_costs_itself_alone(tmp_path, devices):
    """One kills its process, one exits from it, one is bad input; all other shards are whole.

    One kills its process only once. Children of the function end with their worker.
    """
    trouble = (
        "child = os.fork()\n"
        "if child == 0:\n    os.setsid()\n    time.sleep(1000)\n"
        "(HERE / f'{child}.child').touch()\n"
        "if first == 2:\n    os.kill(os.getpid(), signal.SIGSEGV)\n"
        "if first == 8 and once('killed'):\n    os.kill(os.getpid(), 9)\n"
        "if first == 12:\n    raise ValueError('such a bad matrix')\n"
        "if first == 18:\n    os.closerange(3, 1000); os._exit(0)"
    )
    made = planned(tmp_path, trouble)
    first = pooled(made, code=2, devices=devices, SHARDWISE_RUN="abc")
    assert ": its worker was killed by signal 9 (SIGKILL" in first
    said = pooled(made, code=2, devices=devices, SHARDWISE_RUN="abc")
    assert whole(made) == set(range(SHARDS)) - {1, 6, 9}
    found = failed(made)
    assert {n: (f.code, f.attempt) for n, f in found.items()} == {1: (75, 2), 6: (2, 1), 9: (75, 2)}
    assert "was killed by signal 11 (SIGSEGV)" in found[1].reason
    assert "such a bad matrix" in found[6].reason
    assert "such a bad matrix" in (made.results.root / found[6].log).read_text()
    assert "its worker ended its process with os._exit(0)" in found[9].reason
    assert "of 12 shards 3 were not computed; 00006-" in said
    assert factories.receipt(made, "00004").attempt == 2
    children = [int(path.stem) for path in tmp_path.glob("*.child")]
    assert len(children) > SHARDS
    assert not processes.living(children)


def test_a_device_on_which_all_processes_die_is_left(tmp_path):
    """It costs a few shards; another device, with its half of the processors, computes the rest.

    What the last one had claimed ahead may come back after the other worker has ended.
    """
    kill = (
        "assert os.environ['OMP_NUM_THREADS'] == '3'\n"
        f"if os.environ['CUDA_VISIBLE_DEVICES'] == '{fake_uuid(0)}':\n"
        "    (HERE / f'{first}.dies').touch()\n"
        "    os.kill(os.getpid(), 9)\n"
        "until(lambda: len(list(HERE.glob('*.dies'))) == 4)"  # else the other device is first
    )
    made = planned(tmp_path, kill)
    said = pooled(made, code=75, OMP_NUM_THREADS="6")
    assert SHARDS - 5 <= len(whole(made)) <= SHARDS - 4
    shards = (f"{number:05}" for number in whole(made))
    assert {factories.receipt(made, shard).device.uuid for shard in shards} == {fake_uuid(1)}
    assert said.count("WARNING shard") == 4


def test_no_worker_of_the_run_takes_a_device_that_failed(tmp_path):
    """If it is the only one, they end with 75 and say why; else the other computes all."""
    bad, good = fake_uuid(0), fake_uuid(1)
    wrong = (
        "from shardwise.errors import DeviceFailed\n"
        "from shardwise.multiply import operation\n"
        "def examine(self, report):\n"
        "    raise DeviceFailed('the product is wrong', suspect=True)\n"
        f"if os.environ['CUDA_VISIBLE_DEVICES'] == '{bad}':\n"
        "    operation.Operation.examine = examine"
    )
    made, run = planned(tmp_path, wrong), "0123456789ab"
    left = "it failed in this run, a new run may take it"
    for devices, code, words in ((1, 75, f"is wrong ({bad} of"), (1, 75, left), (2, 0, "written")):
        assert words in pooled(made, code=code, devices=devices, SHARDWISE_RUN=run)
        assert [p.name for p in made.results.failed.glob("device-*")] == [f"device-{bad}.json"]
    assert {factories.receipt(made, shard).device.uuid for shard in made.shards} == {good}
    assert failed(made) == {}


WAIT = "(HERE / 'at').touch()\nuntil((HERE / 'go').exists)"


@pytest.mark.fault("a job that is cancelled, SIGTERM, Ctrl-C")
@pytest.mark.fault("a worker or task that is killed")
@pytest.mark.parametrize(("number", "code"), [
    (signal.SIGTERM, 143), factories.nightly(signal.SIGUSR2, 75),
    factories.nightly(signal.SIGINT, 130), (signal.SIGKILL, -9),
])  # fmt: skip
def test_signals_that_end_leave_nothing(tmp_path, number, code):
    """Workers end, only SIGKILL leaves claims, and another run does the rest, without leftovers."""
    made = planned(tmp_path, WAIT)
    run = started(made)
    processes.until((tmp_path / "at").exists)
    workers = processes.children(run.pid)
    assert "are being computed by another process" in pooled(made, code=75)
    assert not made.results.failed.exists()
    run.send_signal(number)
    ended(run, code)
    processes.until(lambda: not processes.living(workers))
    assert made.results.claims.exists() == (number == signal.SIGKILL)
    (tmp_path / "go").touch()
    pooled(made)
    assert is_right(made)
    assert factories.leftovers(tmp_path) == []


def test_sigusr1_finishes_what_was_begun(tmp_path):
    """The shard in work is finished, no other is begun, and the exit code says try again.

    Nor is any begun in a job that is too short.
    """
    made = planned(tmp_path, WAIT)
    run = started(made, devices=1)
    processes.until((tmp_path / "at").exists)
    run.send_signal(signal.SIGUSR1)
    (tmp_path / "go").touch()
    said = ended(run, 75)
    assert 1 <= len(whole(made)) < SHARDS  # how many depends on when the worker hears the signal
    assert "the run time is nearly up" in said
    assert failed(made) == {}
    first = whole(made)
    said = pooled(made, "--run-time", 10, code=75)
    assert "were not computed; multiply-" in said
    assert ": the run time of this job is too short" in said
    assert whole(made) == first


def test_no_shard_is_begun_that_may_not_end():
    """More than one only once it is known how long a shard takes; none once the job is to end."""
    end = time.time() + 130
    asked = [(end, 0.0, 1), (end, 0.0, 2), (end, 20.0, 2), (end, 20.0, 6), (None, 0.0, 2)]
    assert [suffices(*words) for words in asked] == [True, False, True, False, True]
    heed()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert (suffices(end, 20.0), suffices(None)) == (False, False)
    heard.clear()


def test_a_job_that_is_to_end_begins_no_further_round(tmp_path):
    """Though its first round has made progress."""
    made, names = planned(tmp_path), []

    def start(name: str) -> None:
        names.append(name)
        Store(made).fail("00003", TryAgain("later"))
        os.kill(os.getpid(), signal.SIGUSR1)

    with pytest.raises(TryAgain, match=r"12 were not computed; 00003-.*: later"):
        dispatch.compute(made, 1, start, again=True)
    assert len(names) == 1
