"""MPI ranks on one machine: their seats, and what becomes of shards and processes."""

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise import errors
from shardwise.dispatch import mpi
from shardwise.dispatch.crew import Crew
from shardwise.dispatch.events import Event, Order
from shardwise.dispatch.run_time import RunTime
from shardwise.dispatch.seats import View, seated, shown
from shardwise.errors import TryAgain

from tests import factories, processes
from tests.spread import Spread

ALL = ["a", "b", "c", "d"]


def node(number: int, devices: list[str] | None = None, granted: bool = False) -> View:
    """What a rank sees of a node."""
    return View(number, f"n{number}", devices, granted)


ONE, TWO = node(1, ALL[:2]), node(2, ALL[:2])


@pytest.mark.parametrize(
    ("views", "kind", "seats"),
    [
        # The k-th rank of a node begins at the k-th device, wherever its number comes from.
        ([ONE, ONE, TWO, TWO], "device", [(1, (0, 2)), (1, (1, 2))] * 2),
        ([ONE, TWO, ONE, TWO], "device", [(1, (0, 2))] * 2 + [(1, (1, 2))] * 2),
        # A scheduler that binds a device to each task leaves nothing to share.
        ([node(0, [uuid], granted=True) for uuid in ALL], "device", [(1, (0, 1))] * 4),
        # A rank per node has all its devices; two have them in turn.
        ([node(0, ALL), ONE], "node", [(4, (0, 1)), (2, (0, 1))]),
        ([node(0, ALL[:3])] * 2, "node", [(2, (0, 2)), (1, (1, 2))]),
        # Without a grant the other devices may be somebody else's.
        ([node(0, ALL)] * 2, "device", [(1, (0, 2)), (1, (1, 2))]),
        ([node(0, ["a"])] * 2, "device", [(1, (0, 2)), (0, (1, 2))]),
        # A node without devices counts as one worker, unless others have devices.
        ([node(0), node(0), node(2)], "device", [(1, (0, 2)), (0, (1, 2)), (1, (0, 1))]),
        ([node(0), node(3, ["a"])], "node", [(0, (0, 1)), (1, (0, 1))]),
    ],
)
def test_each_rank_has_its_seat(views, kind, seats):
    """So many workers, and the devices at which they look first."""
    assert [(seat.workers, seat.share) for seat in seated(views, kind)] == seats


def test_a_driver_without_any_device_is_told() -> None:
    """All ranks end with 75 where none has a device; where one has, the others look on."""
    lost = View(0, "n1", [], trouble="no usable device: it is lost")
    with pytest.raises(TryAgain, match="it is lost"):
        seated([lost, lost], "device")
    views = [lost, View(1, "n2", ["a"])]
    seats = seated(views, "device")
    assert [seat.workers for seat in seats] == [0, 1]
    assert any(
        "n1: 1 ranks, 0 devices, 0 workers: no usable" in line for line in shown(views, seats)
    )


def test_devices_that_stay_idle_are_told() -> None:
    """With what starts a worker on each."""
    views = [node(0, ALL)]
    total, line = shown(views, seated(views, "device"))
    assert total == "worker processes: 1; MPI ranks: 1; nodes: 1"
    assert line.startswith("n0: 1 ranks, 4 devices, 1 workers: devices stay idle; start a rank for")
    assert len(list(shown(views, seated(views, "node")))) == 1


@given(
    ranks=st.lists(st.integers(0, 2), min_size=1, max_size=12),
    counts=st.lists(st.integers(1, 5), min_size=3, max_size=3),
)
def test_every_granted_device_has_one_worker_wherever_ranks_are(ranks, counts):
    """On each node with a rank the first choices are all devices, each once."""
    views = [View(node, f"n{node}", ALL[: counts[node]], True) for node in ranks]
    for kind in ("device", "node"):
        first: dict[int, list[int]] = {}
        for seat in seated(views, kind):
            choices = [seat.share[0] + k * seat.share[1] for k in range(seat.workers)]
            first.setdefault(seat.node, []).extend(choices)
        assert {node: sorted(found) for node, found in first.items()} == {
            node: list(range(min(counts[node], len(ALL)))) for node in set(ranks)
        }


class Silence:
    """A communicator of two ranks whose other one says nothing."""

    rank, size, code = 1, 2, None

    def Iprobe(self, *_: object) -> bool:  # noqa: N802 - a name of MPI
        """No message."""
        return False

    def Isend(self, *_: object) -> "Silence":  # noqa: N802
        """A message that is on its way at once."""
        return self

    def Test(self) -> bool:  # noqa: N802
        """It has arrived."""
        return True

    def Abort(self, code: int) -> None:  # noqa: N802
        """All ranks end."""
        self.code = code


def test_a_rank_that_says_nothing_ends_all(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody waits for ever for one that hangs."""
    comm = Silence()
    wire = mpi.Wire(comm, limit=0.5)
    processes.until(lambda: wire.received() or comm.code)
    assert comm.code == 75
    (said,) = caplog.records
    assert said.levelname == "ERROR"
    assert said.getMessage().startswith("rank 0 has given no sign of life for ")


class Slow(Silence):
    """Rank 0 of two, whose clock goes on by a second at each look; the other rank waits."""

    rank = 0

    def __init__(self) -> None:
        self.now, self.signs = 0.0, []

    def monotonic(self) -> float:
        """Seconds."""
        self.now += 1
        return self.now

    def Isend(self, *_: object) -> "Slow":  # noqa: N802
        """A sign of life at this time."""
        self.signs.append(self.now)
        return self


def test_rank_0_lives_while_it_looks_for_what_is_missing(tmp_path, monkeypatch):
    """However long that takes: a sign of life in time, from the first shard to the last."""
    made = factories.plan(tmp_path, factories.stack((40, 3, 3)), shards=40, materialize=False)
    plan, comm = factories.computed(made), Slow()
    monkeypatch.setattr(mpi.time, "monotonic", comm.monotonic)
    mpi._lead(mpi.Wire(comm, limit=60.0), None, [], plan, 0, RunTime(None))
    assert comm.now > 40
    assert max(b - a for a, b in pairwise([0.0, *comm.signs, comm.now])) < 10


class Mailbox:
    """A wire with messages to be received, and those that were sent."""

    def __init__(self) -> None:
        self.arriving: list = []
        self.sent: list = []

    def received(self) -> list:
        """All that has come."""
        found, self.arriving = self.arriving, []
        return found

    def send(self, *message: object) -> None:
        """Keep what is sent."""
        self.sent.append(message)


def test_a_late_word_of_a_replaced_worker_does_not_count(tmp_path: Path) -> None:
    """Only what the new process says does, once the order to start it has arrived."""
    wire = Mailbox()
    crews = mpi._Crews(wire, Crew(tmp_path / "plan.tsv", 0))
    done, ready = Event(0, "done", "00001"), Event(0, "ready")
    wire.arriving = [(2, ["event", 0, asdict(done)])]
    assert crews.poll(0) == [replace(done, worker=(2, 0))]
    crews.obey(Order((2, 0), "restart", None, ("GPU-1",)))
    assert wire.sent == [(2, "order", 0, "restart", None, ("GPU-1",))]
    wire.arriving = [(2, ["event", 0, asdict(done)]), (2, ["event", 1, asdict(ready)])]
    assert crews.poll(0) == [replace(ready, worker=(2, 0))]


@pytest.mark.parametrize(
    "kind", [errors.InputError, errors.IntegrityError, errors.TryAgain, errors.ShardwiseError]
)
def test_an_error_of_another_rank_is_that_of_all(tmp_path: Path, kind: type[Exception]) -> None:
    """Rank 0 raises it, of the same class, and tells it to the others from there."""
    wire = Mailbox()
    wire.arriving = [(1, ["failed", kind.exit_code, "such words"])]
    with pytest.raises(kind, match="such words") as caught:
        mpi._Crews(wire, Crew(tmp_path / "plan.tsv", 0)).poll(0)
    assert caught.type is kind


# Real ranks on this machine, with fake devices.


@pytest.fixture
def spread(tmp_path: Path) -> Iterator[Spread]:
    """A plan on a machine of three devices."""
    made = Spread(tmp_path, devices=3)
    yield made
    processes.kill(made.living())


def start(spread: Spread, *words: object) -> subprocess.Popen:
    """Start the ranks."""
    line = spread.line("--dispatch", "mpi", *words)
    with open(spread.root / "run.log", "w") as log:
        return subprocess.Popen(f"exec {line}", shell=True, stderr=log)


def held(spread: Spread, *words: object, devices: int) -> subprocess.Popen:
    """Start ranks whose shards wait for `go_on`; so many devices have one."""
    spread.put("hold")
    run = start(spread, *words)
    processes.until(lambda: len(spread.devices_at_work()) >= devices)
    return run


def go_on(spread: Spread, run: subprocess.Popen) -> str:
    """Let the shards go on, to a good end; what the ranks have said."""
    spread.take_away("hold")
    assert run.wait() == 0, said(spread)
    spread.check()
    return said(spread)


def said(spread: Spread) -> str:
    """What the ranks that were started last have said."""
    return (spread.root / "run.log").read_text()


def test_ranks_of_this_machine_use_all_its_devices(spread: Spread) -> None:
    """As many ranks as devices by default; each device one shard at a time, the same bits."""
    run = held(spread, devices=3)
    assert len(spread.leaders()) == 3
    go_on(spread, run)
    assert len(spread.uses()) == 3
    processes.until(lambda: not spread.living())


def test_no_worker_is_a_rank(spread: Spread) -> None:
    """Neither MPI nor what makes a rank reaches a worker."""
    run = held(spread, "--workers", "node", "--ranks", "2", devices=3)
    for pid in spread.workers():
        assert not [name for name in processes.environment(pid) if name.startswith("PMI")]
        assert "libmpi" not in (processes.PROC / str(pid) / "maps").read_text()
    go_on(spread, run)


@pytest.mark.parametrize("number", [signal.SIGTERM, factories.nightly(signal.SIGINT)])
def test_a_signal_leaves_no_process(spread: Spread, number: int) -> None:
    """It reaches the launcher, which ends its ranks; these end their workers."""
    run = held(spread, "--ranks", "3", devices=3)
    os.kill(run.pid, number)
    assert run.wait() != 0
    processes.until(lambda: not spread.living(), 30)


@pytest.mark.parametrize("kind", [factories.nightly("node"), "device"])
def test_a_stopped_worker_of_any_rank_is_replaced(spread: Spread, kind: str) -> None:
    """The rank that has it speaks of it, ends it, and its shard is computed elsewhere."""
    run = held(spread, "--workers", kind, "--ranks", "2", "--time-limit", "4", devices=2)
    stopped = max(spread.workers())
    os.kill(stopped, signal.SIGSTOP)
    text = go_on(spread, run)
    assert f"WARNING process {stopped} on " in text
    assert "after 4 s it is killed" in text
    assert f"its process {stopped} has been stopped for 4 s: killed" in text
    processes.until(lambda: not spread.living())


def test_a_stopped_rank_is_named_as_all_end(spread: Spread) -> None:
    """The others say so, and end with 75; a rerun does the rest."""
    run = held(spread, "--ranks", "2", "--time-limit", "5", devices=2)
    os.kill(spread.leaders()[-1], signal.SIGSTOP)
    assert run.wait() != 0
    words = "ERROR rank 1 has given no sign of life for 5 s; all ranks end: try again"
    assert words in said(spread)
    processes.until(lambda: not spread.living())
    go_on(spread, start(spread, "--ranks", "2"))
