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


def workers(views: list[View], kind: str) -> list[tuple[int, tuple[int, int]]]:
    """The seats without their nodes."""
    return [(seat.workers, seat.share) for seat in seated(views, kind)]


@pytest.mark.parametrize("granted", [True, False])
def test_ranks_that_see_the_same_devices_share_them(granted: bool) -> None:
    """The k-th rank of a node begins at the k-th device, wherever its number comes from."""
    filled = [View(0, "n1", ALL[:2], granted)] * 2 + [View(2, "n2", ALL[:2], granted)] * 2
    in_turn = [filled[0], filled[2], filled[1], filled[3]]
    assert workers(filled, "device") == [(1, (0, 2)), (1, (1, 2))] * 2
    assert workers(in_turn, "device") == [(1, (0, 2))] * 2 + [(1, (1, 2))] * 2


def test_ranks_that_see_their_own_device_have_it() -> None:
    """A scheduler that binds a device to each task leaves nothing to share."""
    views = [View(0, "n1", [uuid], True) for uuid in ALL]
    assert workers(views, "device") == [(1, (0, 1))] * 4


def test_a_rank_a_node_has_all_devices_of_its_node() -> None:
    """And two ranks of a node have them in turn."""
    assert workers([View(0, "n1", ALL), View(1, "n2", ALL[:2])], "node") == [
        (4, (0, 1)),
        (2, (0, 1)),
    ]
    assert workers([View(0, "n1", ALL[:3])] * 2, "node") == [(2, (0, 2)), (1, (1, 2))]


def test_without_a_grant_a_rank_has_one_device_of_many() -> None:
    """The others may be somebody else's; ranks beyond the devices have nothing to do."""
    assert workers([View(0, "n1", ALL)] * 2, "device") == [(1, (0, 2)), (1, (1, 2))]
    assert [count for count, _ in workers([View(0, "n1", ["a"])] * 3, "device")] == [1, 0, 0]


def test_a_node_without_devices_counts_as_one_worker() -> None:
    """Unless others have devices: products of NumPy and of a GPU are never summed."""
    cpu = [View(0, "n1"), View(0, "n1"), View(2, "n2")]
    assert [count for count, _ in workers(cpu, "device")] == [1, 0, 1]
    assert [count for count, _ in workers([*cpu, View(3, "n3", ["a"])], "node")] == [0, 0, 0, 1]


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


@pytest.mark.parametrize(
    "kind", [errors.InputError, errors.IntegrityError, errors.TryAgain, errors.ShardwiseError]
)
def test_an_error_travels_by_its_code(kind: type[errors.ShardwiseError]) -> None:
    """It is of the same class at the other end."""
    again = errors.of_code(kind.exit_code, "words")
    assert type(again) is kind
    assert str(again) == "words"


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
    """Nobody waits for ever for one that hangs, nor without a word."""
    comm = Silence()
    wire = mpi.Wire(comm, limit=0.5)
    processes.until(lambda: wire.received() or comm.code)
    assert comm.code == 75
    said = [(record.levelname, record.getMessage()[:38]) for record in caplog.records]
    silent = "rank 0 has given no sign of life for "
    assert [(level, words[:37]) for level, words in said] == [
        ("WARNING", silent),
        ("ERROR", silent),
    ]


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


def test_an_error_of_another_rank_is_that_of_all(tmp_path: Path) -> None:
    """Rank 0 raises it, and tells it to the others from there."""
    wire = Mailbox()
    wire.arriving = [(1, ["failed", 2, "bad input"])]
    with pytest.raises(errors.InputError, match="bad input"):
        mpi._Crews(wire, Crew(tmp_path / "plan.tsv", 0)).poll(0)


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


def said(spread: Spread) -> str:
    """What the ranks that were started last have said."""
    return (spread.root / "run.log").read_text()


def test_ranks_of_this_machine_use_all_its_devices(spread: Spread) -> None:
    """As many ranks as devices by default; each device one shard at a time, the same bits."""
    spread.put("hold")
    run = start(spread)
    processes.until(lambda: len(spread.devices_at_work()) == 3)
    assert len(spread.leaders()) == 3
    spread.take_away("hold")
    assert run.wait() == 0, said(spread)
    spread.check()
    assert len(spread.uses()) == 3
    processes.until(lambda: not spread.living())


def test_no_worker_is_a_rank(spread: Spread) -> None:
    """Neither MPI nor what makes a rank reaches a worker."""
    spread.put("hold")
    run = start(spread, "--workers", "node", "--ranks", "2")
    processes.until(lambda: len(spread.devices_at_work()) == 3)
    for pid in spread.workers():
        assert not [name for name in processes.environment(pid) if name.startswith("PMI")]
        assert "libmpi" not in (processes.PROC / str(pid) / "maps").read_text()
    spread.take_away("hold")
    assert run.wait() == 0, said(spread)
    spread.check()


@pytest.mark.parametrize("number", [signal.SIGTERM, factories.nightly(signal.SIGINT)])
def test_a_signal_leaves_no_process(spread: Spread, number: int) -> None:
    """It reaches the launcher, which ends its ranks; these end their workers."""
    spread.put("hold")
    run = start(spread, "--ranks", "3")
    processes.until(lambda: len(spread.devices_at_work()) == 3)
    os.kill(run.pid, number)
    assert run.wait() != 0
    processes.until(lambda: not spread.living(), 30)


@pytest.mark.parametrize("kind", [factories.nightly("node"), "device"])
def test_a_stopped_worker_of_any_rank_is_replaced(spread: Spread, kind: str) -> None:
    """The rank that has it speaks of it, ends it, and its shard is computed elsewhere."""
    spread.put("hold")
    run = start(spread, "--workers", kind, "--ranks", "2", "--time-limit", "4")
    processes.until(lambda: len(spread.devices_at_work()) >= 2)
    stopped = max(spread.workers())
    os.kill(stopped, signal.SIGSTOP)
    spread.take_away("hold")
    assert run.wait() == 0, said(spread)
    spread.check()
    assert f"WARNING process {stopped} on " in said(spread)
    assert "after 4 s it is killed" in said(spread)
    assert f"its process {stopped} has been stopped for 4 s: killed" in said(spread)
    processes.until(lambda: not spread.living())


def test_a_stopped_rank_is_named_before_all_end(spread: Spread) -> None:
    """The others say so in time, and end with 75; a rerun does the rest."""
    spread.put("hold")
    run = start(spread, "--ranks", "2", "--time-limit", "5")
    processes.until(lambda: len(spread.devices_at_work()) == 2)
    os.kill(spread.leaders()[-1], signal.SIGSTOP)
    assert run.wait() != 0
    assert "WARNING rank 1 has given no sign of life for " in said(spread)
    assert "ERROR rank 1 has given no sign of life for 5 s; all ranks end: try again" in said(
        spread
    )
    processes.until(lambda: not spread.living())
    spread.take_away("hold")
    assert start(spread, "--ranks", "2").wait() == 0, said(spread)
    spread.check()
