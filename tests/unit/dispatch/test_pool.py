"""The pool: one worker process a device, whatever becomes of it, and the leader that feeds them."""

import os
import re
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from shardwise.dispatch import leader
from shardwise.dispatch.events import Event
from shardwise.dispatch.tally import Tally
from shardwise.dispatch.worker import _ShardLoop
from shardwise.errors import (
    DeviceFailed,
    InputError,
    IntegrityError,
    Misled,
    TryAgain,
    WrongProduct,
)
from shardwise.plan.plan import Plan
from shardwise.records.receipts import ProductReceipt

from tests import factories, fake_devices, processes
from tests.unit.dispatch import test_apart

SHARDS = 12

# A product of one's own: the square, and before it what a test wants of the matrix in its corner.
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


def planned(
    folder: Path, trouble: str = "pass", shards: int = SHARDS, materialize: bool = False
) -> Plan:
    """A plan of small shards of two matrices, whose function runs some lines before each shard.

    ``first``, in these lines, is the index of the shard's first matrix.
    """
    body = "".join(f"    {line}\n" for line in trouble.splitlines())
    (folder / "own.py").write_text(FUNCTION + body)
    left = factories.stack((2 * shards, 6, 6), "float64")
    left[:, 0, 0] = np.arange(2 * shards)
    product = f"{folder / 'own.py'}:square"
    made = factories.plan(folder, left, product=product, shards=shards, materialize=materialize)
    (folder / "begun").touch()
    return made


def command(made: Plan, *words: object) -> list[str]:
    """The command line of a pool."""
    return factories.command("dispatch", "--plan", made.results.plan, *words)


def environment(folder: Path, devices: int) -> dict[str, str]:
    """Variables of a machine with so many devices that do not exist."""
    return os.environ | fake_devices.environment(devices, folder / "leases")


def pooled(
    made: Plan, *words: object, code: int = 0, devices: int = 2, cwd: Path | None = None,
    **variables: object,
) -> str:  # fmt: skip
    """Compute what is missing on some fake devices; what the pool has said."""
    env = environment(made.results.root.parent, devices) | {k: str(v) for k, v in variables.items()}
    done = subprocess.run(
        command(made, *words), capture_output=True, text=True, check=False, env=env, cwd=cwd
    )
    assert done.returncode == code, done.stderr
    return done.stderr


def started(made: Plan, devices: int = 2) -> subprocess.Popen:
    """A pool at work on some fake devices."""
    return subprocess.Popen(
        command(made), stderr=subprocess.PIPE, text=True,
        env=environment(made.results.root.parent, devices),
        preexec_fn=processes.heed_interrupts,  # noqa: PLW1509 - no threads
    )  # fmt: skip


def expected(made: Plan) -> np.ndarray:
    """The squares of all matrices."""
    left = np.load(made.results.root.parent / "input.npy")
    return left @ left


def receipt(made: Plan, number: int) -> ProductReceipt:
    """The receipt of a shard."""
    return factories.receipt(made, f"{number:05}")


def whole(made: Plan) -> list[int]:
    """The numbers of the shards that have a receipt."""
    return [n for n in range(len(made.shards)) if made.results.receipt(f"{n:05}").exists()]


def log(made: Plan, number: int) -> str:
    """The log of a shard."""
    return made.results.log("multiply", f"{number:05}").read_text()


@pytest.mark.parametrize(("keep", "materialize"), [("products", True), ("sum", False)])
def test_the_bits_are_those_of_single_shards(tmp_path, keep, materialize):
    """Every file of the pool equals the one that the shard alone gives, byte by byte."""
    left = factories.noise((40, 9, 9), seed=3)
    over = {"shards": 7, "keep": keep, "materialize": materialize}
    alone = factories.computed(factories.plan(tmp_path / "alone", left, **over))
    made = factories.plan(tmp_path / "pool", left, **over)
    said = pooled(made)
    assert "7 of 7 shards done" in said
    for shard in made.shards:
        one, other = (m.results.product(shard).read_bytes() for m in (alone, made))
        assert one == other
        written = factories.receipt(made, shard)
        assert written.input_checksum == factories.receipt(alone, shard).input_checksum
        assert written.attempt == 1
    assert factories.leftovers(tmp_path) == []


def test_each_worker_has_a_device_of_its_own(tmp_path):
    """Two workers on two devices, each one process to its end."""
    wait = (
        "(HERE / f'at {first}').touch()\n"
        "until(lambda: len(list(HERE.glob('at *'))) > 1)\n"  # the first two wait for each other
        "assert 'mpi4py' not in sys.modules"
    )
    made = planned(tmp_path, wait)
    pooled(made)
    np.testing.assert_array_equal(factories.products(made), expected(made))
    devices = {receipt(made, n).device.uuid for n in range(SHARDS)}
    pids = {starts(made, n)[0] for n in range(SHARDS)}
    assert len(devices) == len(pids) == 2


def starts(made: Plan, number: int) -> list[int]:
    """The processes that began a shard; of one that went well at once the receipt knows."""
    if not made.results.starts(f"{number:05}").exists():
        return [receipt(made, number).process]
    lines = made.results.starts(f"{number:05}").read_text().splitlines()
    return [int(line.split("\t")[2]) for line in lines]


def test_the_next_shard_is_read_while_one_is_computed(tmp_path):
    """A shard in the middle computes until the next one's read has begun, in the same process."""
    wait = (
        "if first == 8:\n    until((HERE / 'results' / 'logs' / 'multiply' / '00005.log').exists)"
    )
    made = planned(tmp_path, wait)
    said = pooled(made, devices=1)
    assert receipt(made, 5).started < receipt(made, 4).finished
    assert starts(made, 4) == starts(made, 5)
    lines = [line for line in said.splitlines() if " INFO shard 000" in line]
    assert [line.count("00004") for line in lines if "00004" in line] == [2]
    assert len(lines) == SHARDS


def test_a_shard_that_went_well_leaves_two_files(tmp_path):
    """What its log said stands in the worker's; a warning, or a second attempt, keeps the files."""
    trouble = "if first == 2:\n    __import__('logging').warning('odd')\n"
    trouble += "if first == 4 and once('failed'):\n    raise MemoryError"
    made = planned(tmp_path, trouble)
    said = pooled(made)
    kept = [path.name for path in made.results.log("multiply").parent.iterdir() if path.is_file()]
    assert {"00001.log", "00001.starts", "00002.log", "00002.starts"} == set(kept) - {"done"}
    assert len(starts(made, 2)) == 2
    for number in set(range(SHARDS)) - {1, 2}:
        path = made.results.receipt(f"{number:05}")
        assert f" INFO shard {number:05}: {path} written\n" in said


def test_a_shard_log_is_that_of_a_job(tmp_path):
    """The log of a shard names node, process and the command that does the same by hand."""
    made = planned(tmp_path, "__import__('logging').warning('odd')", shards=2)
    pooled(made)
    lines = log(made, 1).splitlines()
    assert f"process {starts(made, 1)[0]}" in lines[0]
    by_hand = lines[1].partition("by hand: ")[2]
    assert by_hand.endswith(f"--plan {made.results.plan} --shard 00001")
    for path in (made.results.receipt("00001"), made.results.product("00001")):
        path.unlink()
    subprocess.run(by_hand, shell=True, check=True, capture_output=True)
    np.testing.assert_array_equal(factories.products(made), expected(made))


def test_no_room_for_a_log_costs_no_shard(tmp_path):
    """Where the disk of the logs is full, shards are computed all the same, at the first try."""
    made = planned(tmp_path, shards=3)
    path = made.results.log("multiply", "00001")
    path.parent.mkdir(parents=True)
    path.symlink_to("/dev/full")
    said = pooled(made, devices=1)
    assert "WARNING" not in said
    assert [receipt(made, n).attempt for n in range(3)] == [1, 1, 1]


@pytest.mark.fault("a worker or task that is killed")
def test_a_killed_worker_is_replaced(tmp_path):
    """Its shard is tried again by another process; what it was given ahead is not a failure."""
    kill = "if first == 8 and once('killed'):\n    os.kill(os.getpid(), signal.SIGKILL)"
    made = planned(tmp_path, kill)
    said = pooled(made, devices=1)
    np.testing.assert_array_equal(factories.products(made), expected(made))
    attempts = [receipt(made, n).attempt for n in range(SHARDS)]
    assert attempts.pop(3) in (1, 2)  # it was perhaps still being written
    assert attempts == [1] * 3 + [2] + [1] * 7
    assert len(set(starts(made, 4))) == 2
    assert "shard 00004: its process, which runs your function " in said
    assert "was killed by signal 9 (SIGKILL" in said
    assert all("00003" in left.name for left in factories.leftovers(tmp_path))  # the ledger's work


@pytest.mark.fault("a poison shard")
def test_a_poison_shard_costs_itself_alone(tmp_path):
    """One kills each process that computes it, one ends it, one is bad input: the rest is whole.

    What ends its process is tried once, and named with what it did; no device is to blame.
    """
    trouble = (
        "if first == 2:\n    os.kill(os.getpid(), signal.SIGSEGV)\n"
        "if first == 12:\n    raise ValueError('such a bad matrix')\n"
        "if first == 18:\n    os.closerange(3, 1000); os._exit(0)"
    )
    made = planned(tmp_path, trouble)
    said = pooled(made, "--retries", 2, code=2)
    assert whole(made) == [n for n in range(SHARDS) if n not in (1, 6, 9)]
    assert [len(starts(made, n)) for n in (1, 6, 9)] == [3, 1, 1]
    assert "is left out" not in said
    ends = [line for line in said.splitlines() if " ERROR shard " in line]
    named = [line.partition("ERROR shard ")[2][:5] for line in ends]
    assert named == ["00001", "00006", "00009"]
    ended = "own.py:square ended its process with os._exit(0)"
    assert ended in ends[2]
    told = {1: "killed by signal 11 (SIGSEGV)", 6: "such a bad matrix", 9: ended}
    assert all(words in log(made, number) for number, words in told.items())


def test_a_device_that_fails_is_left_out(tmp_path):
    """Two shards die on one device: it is named and used no more, and the other does all."""
    bad = "GPU-" + fake_uuid(0)
    kill = (
        f"if os.environ['CUDA_VISIBLE_DEVICES'] == '{bad}':\n"
        "    (HERE / f'{first}.dies').touch()\n"
        "    os.kill(os.getpid(), 9)\n"
        "until(lambda: len(list(HERE.glob('*.dies'))) == 2)"  # else this device does all before
    )
    made = planned(tmp_path, kill)
    said = pooled(made)
    assert f"{bad} of " in said
    assert said.count("is left out") == 1
    devices = {receipt(made, n).device.uuid for n in range(SHARDS)}
    assert devices == {"GPU-" + fake_uuid(1)}
    assert sum(len(starts(made, n)) for n in range(SHARDS)) == SHARDS + 2


def fake_uuid(number: int) -> str:
    """The end of the UUID of a fake device."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{socket.gethostname()} {number}"))


def test_what_a_function_does_to_its_process_reaches_no_other_shard(tmp_path):
    """The second shard finds the working directory as the first did, and files lie in place."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "results").mkdir(parents=True)
    trouble = f"assert os.getcwd() == str(HERE), os.getcwd()\nos.chdir({str(elsewhere)!r})"
    made = test_apart.planned(tmp_path, trouble)
    pooled(made, devices=1, cwd=tmp_path)
    np.testing.assert_array_equal(factories.products(made), 2 * test_apart.LEFT)
    assert starts(made, 0) == starts(made, 1)
    assert [path for path in elsewhere.rglob("*") if path.is_file()] == []


def test_children_of_a_function_end_with_its_shard(tmp_path):
    """Those that it leaves when it returns, and those of a worker that was killed."""
    trouble = (
        "child = os.fork()\n"
        "if child == 0:\n    os.setsid()\n    time.sleep(1000)\n"
        "(HERE / f'{child}.child').touch()\n"
        "if first == 4 and once('killed'):\n    os.kill(os.getpid(), 9)\n"
        "others = [int(path.stem) for path in HERE.glob('*.child') if int(path.stem) != child]\n"
        "living = [pid for pid in others if pathlib.Path('/proc', str(pid)).exists()]\n"
        "assert (HERE / 'killed').exists() or not living, living"
    )
    made = planned(tmp_path, trouble)
    pooled(made, devices=1)
    children = [int(path.stem) for path in tmp_path.glob("*.child")]
    assert SHARDS < len(children) <= SHARDS + 2  # the shard before was perhaps still being written
    assert not processes.living(children)


# Workers that hang, and such that only look like it.

STOPPED = "if first == 4 and once('stopped'):\n    os.kill(os.getpid(), signal.SIGSTOP)"

# As in a driver: its process waits in the kernel, Python's lock in its hand, and no signal but
# SIGKILL reaches it. (The child that this starts waits for a pipe that nobody opens.)
IN_THE_KERNEL = """
if first == 4 and once("hangs"):
    os.mkfifo(HERE / "pipe")
    wait = [(os.POSIX_SPAWN_OPEN, 9, str(HERE / "pipe"), os.O_RDONLY, 0)]
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=wait)
"""


@pytest.mark.parametrize(
    ("trouble", "how", "devices"),
    [(STOPPED, "has been stopped", 2), (IN_THE_KERNEL, "has hung in the kernel", 1)],
    ids=["stopped", "in the kernel"],
)
def test_a_worker_that_hangs_is_named_and_then_replaced(tmp_path, trouble, how, devices):
    """First a warning with process, shard and device; in the end another process does its shard."""
    made = planned(tmp_path, trouble)
    said = pooled(made, "--time-limit", 3, devices=devices)
    np.testing.assert_array_equal(factories.products(made), expected(made))
    attempts = [receipt(made, n).attempt for n in range(SHARDS)]
    before = attempts.pop(1)  # it was perhaps still being written
    assert before in (1, 2)
    assert attempts == [1, 2] + [1] * 9
    pid = starts(made, 2)[0]
    (warned,) = [line for line in said.splitlines() if f"WARNING process {pid} on " in line]
    # Or the one before, where that is still being written.
    computes = f"which computes shard 0000[12] on GPU-{fake_uuid(0)[:4]}"
    assert re.search(computes, warned) or devices == 2
    assert f"{how}" in warned
    assert "after 3 s it is killed, and its shard is tried again" in warned
    assert f"shard 00002: its process {pid} {how}" in said
    assert not processes.living([pid])


# Holds Python's lock for seconds, at work and asleep in turn: a function of C called without
# letting go of it.
HOLDS_THE_LOCK = """
import ctypes
held = ctypes.PyDLL(None)
if first == 4:
    held.usleep(2_000_000)
    began = time.process_time()
    while time.process_time() < began + 2:
        held.qsort(ctypes.create_string_buffer(1), 0, 1, 0)
        sum(range(10**6))
if first == 6:
    time.sleep(3)
"""


def test_a_worker_that_is_at_work_or_asleep_does_not_hang(tmp_path):
    """Whoever computes, sleeps, or holds Python's lock for longer than the limit lives."""
    made = planned(tmp_path, HOLDS_THE_LOCK)
    said = pooled(made, "--time-limit", 1, devices=1)
    assert "WARNING" not in said
    assert len({starts(made, n)[0] for n in range(SHARDS)}) == 1


def test_a_leased_device_is_not_waited_for_in_the_end(tmp_path):
    """The worker of a device that a stranger has waits, and goes when the others are done."""
    made, lease = planned(tmp_path), tmp_path / "leases" / f"GPU-{fake_uuid(0)}.lease"
    lease.parent.mkdir()
    lease.parent.chmod(0o1777)
    stranger = subprocess.Popen(["flock", "--no-fork", lease, "sleep", "600"])
    try:
        processes.until(lambda: lease.exists() and processes.holders(lease))
        pooled(made)
    finally:
        stranger.kill()
        stranger.wait()
    devices = {receipt(made, n).device.uuid for n in range(SHARDS)}
    assert devices == {"GPU-" + fake_uuid(1)}


HANG = "if first >= 4:\n    (HERE / f'{first}.hangs').touch()\n    until((HERE / 'go').exists)"


def hanging(made: Plan) -> bool:
    """Whether two workers have come to where they hang."""
    return len(list(made.results.root.parent.glob("*.hangs"))) == 2


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 130)],
    ids=["KILL", "TERM", "INT"],
)
def test_no_worker_outlives_its_pool(tmp_path, number, code):
    """However the pool ends, workers end and leave nothing, and a rerun does the rest."""
    made = planned(tmp_path, HANG)
    run = started(made)
    # What is done before is written by another thread, which may still be at it.
    processes.until(lambda: hanging(made) and whole(made)[:2] == [0, 1])
    family = processes.descendants([run.pid])
    run.send_signal(number)
    run.communicate()
    assert run.returncode == code
    processes.until(lambda: not processes.living(family))
    assert factories.leftovers(tmp_path) == []
    before = whole(made)
    assert before[:2] == [0, 1]
    (tmp_path / "go").touch()
    pooled(made)
    assert factories.leftovers(tmp_path) == []
    np.testing.assert_array_equal(factories.products(made), expected(made))
    assert all(receipt(made, n).attempt == 1 for n in before)


def test_names_of_files_and_folders_stop_no_pool(tmp_path):
    """One of Python's in the present folder is not loaded; TMPDIR may be longer than a socket's."""
    (tmp_path / "signal.py").write_text("raise RuntimeError('not this one')\n")
    long = tmp_path / ("x" * 100)
    long.mkdir()
    made = planned(tmp_path, "assert 'PYTHONSAFEPATH' not in os.environ", shards=2)
    pooled(made, cwd=tmp_path, TMPDIR=long)


# A crew whose only worker hangs in the driver: signals reach nobody.
HANGING_CREW = """
import sys, time
from multiprocessing.popen_fork import Popen
from pathlib import Path
from shardwise.dispatch import crew
from shardwise.dispatch.events import Order

crew._GRACE_SECONDS = crew._EXIT_SECONDS = 0.1
Popen._send_signal = lambda self, number: None
with crew.Crew(Path(sys.argv[1]), 1) as own:
    while not own.poll(1):
        pass
    own.obey(Order(0, "assign", "00000"))
    while not Path(sys.argv[2]).exists():
        time.sleep(0.05)
"""


def test_a_worker_that_nothing_ends_is_left(tmp_path):
    """The command names it and ends, instead of waiting for it for ever."""
    hang = (
        "os._exit = time.sleep\n"
        "(HERE / 'hangs').write_text(str(os.getpid()))\n"
        "time.sleep(600)"
    )  # fmt: skip
    made = planned(tmp_path, hang, shards=1)
    words = [sys.executable, "-c", HANGING_CREW, made.results.plan, tmp_path / "hangs"]
    env = os.environ | {"PYTHONPATH": str(factories.SCRIPTS)}
    try:
        with open(tmp_path / "said", "w") as said:
            done = subprocess.run(words, stderr=said, env=env, check=False, timeout=60)
    finally:
        pid = (tmp_path / "hangs").read_text()
        os.kill(int(pid), signal.SIGKILL)
    assert done.returncode == 0
    assert (tmp_path / "said").read_text().startswith(f"process {pid} did not end")
    assert f"process {pid} cannot be ended" in (tmp_path / "said").read_text()


@pytest.mark.parametrize("parent", ["pool", "array.follow", "array.puller"])
def test_the_parent_loads_nothing_that_computes(parent):
    """What the parent imports is the standard library: nothing of CUDA, MPI or NumPy is in it."""
    look = (
        f"import sys, shardwise.dispatch.{parent}\n"
        "found = {'numpy', 'cupy', 'mpi4py'} & set(sys.modules)\n"
        "sys.exit(f'{found} loaded' if found else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", look], env=os.environ | {"PYTHONPATH": str(factories.SCRIPTS)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("error", "code", "suspect"),
    [
        (DeviceFailed("lost"), 75, True),
        (WrongProduct("off"), 3, True),
        (Misled("another matrix"), 75, True),
        (IntegrityError("damaged"), 3, False),
        (MemoryError(), 75, False),
        (ValueError("a fault"), 1, False),
    ],
)
def test_what_makes_a_device_suspect(tmp_path, error, code, suspect):
    """Its own errors and products that fail their proof, not what a shard's files bring about."""
    said = []
    session = SimpleNamespace(device={"uuid": "GPU-0"}, finish=None)
    wire = SimpleNamespace(send=lambda *words, **facts: said.append((words, facts)))
    own = _ShardLoop(planned(tmp_path), None, wire, session)
    assert own._failed("00000", error) is not suspect
    ((words, facts),) = said
    assert words == ("failed", "00000")
    assert (facts["code"], facts["suspect"], facts["device"]) == (code, suspect, "GPU-0")
    assert not facts["barred"]


# The leader alone.


class Stage:
    """A leader, and what it has ordered so far; time goes on by a second a turn."""

    def __init__(self, folder: Path, workers: int, shards: int = SHARDS, retries: int = 2) -> None:
        self.plan = planned(folder, shards=shards)
        self.tally = Tally(self.plan, list(self.plan.shards), retries)
        self.leader = leader.Leader(self.plan, self.tally)
        self.now = 0.0
        for worker in range(workers):
            self.leader.expect(worker, "here")

    def turn(self, *events: Event) -> list[leader.Order]:
        """What follows from events."""
        self.now += 1
        return self.leader.act(events, self.now)


def ready(worker: int, device: str | None = None) -> Event:
    """A worker that has its device."""
    return Event(worker, "ready", device=device or f"GPU-{worker}")


def died(worker: int, shard: str | None = None) -> Event:
    """A worker that was killed."""
    return Event(worker, "died", shard, reason="killed", suspect=True)


def test_a_worker_that_dies_blames_the_shard_that_it_computed(tmp_path):
    """Not the one that it was still writing, nor the one that it had begun to read."""
    stage = Stage(tmp_path, 2, retries=0)
    (first,) = stage.turn(ready(0))
    (second,) = stage.turn(Event(0, "done", first.shard))
    (third,) = stage.turn(Event(0, "read", second.shard))
    (fourth,) = stage.turn(Event(0, "queued", second.shard), Event(0, "read", third.shard))
    assert set(stage.tally.running) == {second.shard, third.shard}
    assert stage.turn(died(0, second.shard))[0].kind == "restart"
    assert list(stage.tally.lost) == [third.shard]
    assert not stage.tally.running
    (again,) = stage.turn(ready(1))
    assert again.shard == second.shard, "it comes first again"
    assert fourth.shard in stage.tally.waiting


def test_a_worker_that_cannot_go_on_loses_no_shard(tmp_path):
    """It fails with two shards and blames none: one is tried again, the other comes first again."""
    stage = Stage(tmp_path, 2)
    (first,) = stage.turn(ready(0))
    stage.turn(Event(0, "done", first.shard))
    (ahead,) = stage.turn(Event(0, "read", "00001"))
    (order,) = stage.turn(Event(0, "failed", code=75, reason="a full disk"))
    assert (order.worker, order.kind) == (0, "restart")
    assert not stage.tally.running
    assert "00001" in stage.tally.waiting
    assert stage.turn(ready(1))[0].shard == ahead.shard == "00002"


def test_a_late_word_does_not_let_a_worker_forget_that_it_is_idle(tmp_path):
    """Nothing waits for it when it says so; a shard that comes back later is its own."""
    stage = Stage(tmp_path, 2, shards=2)
    stage.turn(ready(0))
    stage.turn(ready(1))
    assert stage.turn(Event(0, "done", "00000"), Event(0, "read", "00000")) == []
    orders = stage.turn(died(1, "00001"))
    assert [(order.worker, order.kind) for order in orders] == [(1, "restart"), (0, "assign")]


def test_failures_of_one_shard_blame_no_device(tmp_path):
    """The same shard dies again and again; with a success between, two different ones may."""
    stage = Stage(tmp_path, 1, shards=2, retries=9)
    (order,) = stage.turn(ready(0))
    for _ in range(3):
        bad = order.shard
        assert [o.kind for o in stage.turn(died(0, bad))] == ["restart"]
        (order,) = stage.turn(ready(0))
        (order,) = stage.turn(Event(0, "done", order.shard)) if order.shard != bad else (order,)
    assert not stage.leader.ended


def test_the_last_device_is_left_out_too(tmp_path):
    """Not for two poisonous shards; after four that failed one after the other it is the device."""
    stage = Stage(tmp_path, 1)
    for kind in ("restart", "restart", "restart", "retire"):
        (order,) = stage.turn(ready(0))
        assert [o.kind for o in stage.turn(died(0, order.shard))] == [kind]
    assert stage.leader.ended
    with pytest.raises(TryAgain, match=r"no device is left .* GPU-0 \(killed\)"):
        stage.leader.finish()


def test_a_worker_that_gets_a_bad_device_is_started_again(tmp_path):
    """One that waited for any device may get the one that is left out: it must look further."""
    stage = Stage(tmp_path, 2)
    (order,) = stage.turn(ready(0))
    stage.turn(died(0, order.shard))
    (order,) = stage.turn(ready(0))
    assert stage.turn(died(0, order.shard)) == [leader.Order(0, "retire")]
    assert stage.turn(ready(1, "GPU-0")) == [leader.Order(1, "restart", without=("GPU-0",))]
    assert stage.turn(ready(1))[0].kind == "assign"


def test_nobody_can_begin(tmp_path):
    """Where no worker gets a device, the code says whether waiting helps."""
    stage = Stage(tmp_path, 2)
    stage.turn(Event(0, "failed", code=75, reason="busy"))
    assert not stage.leader.ended
    stage.turn(Event(1, "failed", code=2, reason="no cupy"))
    assert stage.leader.ended
    with pytest.raises(InputError, match="busy; no cupy"):
        stage.leader.finish()


def test_a_worker_that_dies_before_it_begins_is_given_up(tmp_path):
    """It is started once more, not for ever."""
    stage = Stage(tmp_path, 1)
    assert stage.turn(died(0)) == [leader.Order(0, "restart")]
    assert stage.turn(died(0)) == [leader.Order(0, "retire")]
    assert stage.leader.ended
