"""Marks of a lane: when it was at work, on the host's clock, also where a device keeps the time."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from shardwise.multiply import lanes
from shardwise.multiply.lanes import CudaLane

AHEAD = 5000.0
"""Seconds by which the device's clock differs from the host's."""


class Event:
    """An event that is passed as soon as it is recorded."""

    now = 0.0  # seconds of the host

    def __init__(self, block):
        assert block, "who waits for it would keep a core busy"

    def record(self, stream):
        """Note the device's time."""
        self.at, self.done = Event.now + AHEAD, False

    def synchronize(self):
        """Pass it."""
        self.done = True


def elapsed(first, second):
    """Milliseconds between two events, as float32; an error as CUDA's where one is not passed."""
    assert second.done, "cudaErrorNotReady"
    return float(np.float32((second.at - first.at) * 1e3))


class Stream(nullcontext):
    """A stream that does nothing."""

    ptr = 0

    def __init__(self, non_blocking):
        super().__init__()
        assert non_blocking

    def wait_event(self, event):
        """Wait on the device."""


def fake_cupy():
    """As much of cupy as a lane calls to copy and to time."""
    runtime = SimpleNamespace(
        memcpyAsync=lambda *a: None, memcpyHostToDevice=1, memcpyDeviceToHost=2
    )
    memory = SimpleNamespace(OutOfMemoryError=MemoryError)
    cuda = SimpleNamespace(
        Event=Event, Stream=Stream, get_elapsed_time=elapsed, runtime=runtime, memory=memory,
        Device=lambda: SimpleNamespace(use=lambda: None),
    )  # fmt: skip
    return SimpleNamespace(cuda=cuda)


@pytest.fixture
def clock(monkeypatch):
    """Sets the time of host and device."""
    monkeypatch.setattr(lanes.time, "perf_counter", lambda: Event.now)

    def to(seconds):
        Event.now = seconds

    to(100.0)
    return to


def copied(lane, clock, began, ended):
    """The mark of an upload that took from one moment to another."""
    block = SimpleNamespace(data=SimpleNamespace(ptr=0), nbytes=8)
    clock(began)
    views = [np.zeros(8, np.uint8)]
    original = lane.xp.cuda.runtime.memcpyAsync
    lane.xp.cuda.runtime.memcpyAsync = lambda *a: clock(ended)
    mark = lane.upload(views, block)
    lane.xp.cuda.runtime.memcpyAsync = original
    return mark


def test_a_mark_of_a_device_speaks_the_time_of_the_host(clock):
    """Whatever its own clock says."""
    lane = CudaLane(fake_cupy())
    assert copied(lane, clock, 103.0, 103.5).wait() == pytest.approx((103.0, 103.5), abs=1e-4)
    clock(110.0)
    with lane.work() as began:
        clock(112.0)
    assert lane.worked(began).wait() == pytest.approx((110.0, 112.0), abs=1e-4)


def test_a_mark_keeps_the_clock_that_it_was_made_by(clock):
    """A shard that is begun meanwhile sets the clock for its own marks."""
    lane = CudaLane(fake_cupy())
    mark = copied(lane, clock, 101.0, 102.0)
    with lane.work() as began:
        clock(200.0)
        lane.set_clock()
    later = lane.worked(began)
    assert mark.wait() == pytest.approx((101.0, 102.0), abs=1e-4)
    assert later.wait() == pytest.approx((102.0, 200.0), abs=1e-3)
    assert copied(lane, clock, 201.0, 202.0).wait() == pytest.approx((201.0, 202.0), abs=1e-4)


def test_what_a_mark_took_does_not_round_with_the_hours(clock):
    """A float32 of milliseconds has eight of them as its unit after a day; a copy takes one."""
    lane = CudaLane(fake_cupy())
    began, ended = copied(lane, clock, 90100.0, 90100.001).wait()
    assert ended - began == pytest.approx(0.001, rel=1e-3)
    lane.set_clock()
    assert copied(lane, clock, 90101.0, 90101.001).wait()[0] == pytest.approx(90101.0, abs=1e-4)
