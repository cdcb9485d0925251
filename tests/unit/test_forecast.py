"""The time left of a run: as sure as it says, and silent where nothing is known."""

import heapq
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shardwise.watching.forecast import AtWork, Forecast, Past, Unknown, forecast

Run = list[tuple[int, float, float]]
"""Device, begin and end of each shard."""

DEVICES = {
    "equal": ([10.0] * 4, lambda dice: dice.gauss(1, 0.05)),
    "skewed": ([10.0] * 4, lambda dice: dice.lognormvariate(-0.18, 0.6)),
    "unequal": ([5.0, 10.0, 20.0, 20.0], lambda dice: dice.gauss(1, 0.1)),
    "alone": ([10.0], lambda dice: dice.gauss(1, 0.1)),
}


def played(shards: int, speeds: list[float], luck: Callable[[Random], float], dice: Random) -> Run:
    """A run in which each device takes the next shard as it becomes free."""
    free = [(0.0, number) for number in range(len(speeds))]
    run = []
    for _ in range(shards):
        at, device = heapq.heappop(free)
        end = at + 0.3 + speeds[device] * luck(dice)
        run.append((device, at + 0.3, end))
        heapq.heappush(free, (end, device))
    return run


def at(run: Run, now: float, says: bool = True) -> Forecast:
    """What is forecast at a moment; tasks at work may say how far they are."""
    past = [Past(f"d{d}", "GPU", begin, end, 1.0) for d, begin, end in run if end <= now]
    work = [
        AtWork(f"d{d}", "GPU", begin, 1.0, (now - begin) / (end - begin) if says else None)
        for d, begin, end in run
        if begin <= now < end
    ]
    return forecast(now, past, work, [1.0 for _, begin, _ in run if begin > now])


@pytest.mark.parametrize("says", [True, False], ids=["progress", "no progress"])
@pytest.mark.parametrize("kind", DEVICES)
def test_the_interval_holds_the_truth_about_as_often_as_it_says(kind: str, says: bool) -> None:
    """Four of five times, and the middle is neither early nor late in the mean."""
    dice, inside, ratios = Random(1), 0, []
    for _ in range(30):
        run = played(80, *DEVICES[kind], dice)
        end = max(end for _, _, end in run)
        got, left = at(run, 0.5 * end, says), 0.5 * end
        inside += got.low <= left <= got.high
        ratios.append(got.middle / left)
    assert 18 <= inside <= 30
    assert 0.9 < sum(ratios) / len(ratios) < 1.1


@pytest.mark.parametrize("kind", DEVICES)
def test_the_interval_shrinks_as_the_run_goes_on(kind: str) -> None:
    """The later, the fewer seconds between low and high."""
    dice, widths = Random(2), [0.0, 0.0, 0.0]
    for _ in range(6):
        run = played(60, *DEVICES[kind], dice)
        end = max(end for _, _, end in run)
        for number, share in enumerate((0.15, 0.5, 0.9)):
            got = at(run, share * end)
            widths[number] += got.high - got.low
    assert widths[0] > widths[1] > widths[2]


times = st.floats(0, 1e6)
devices = st.sampled_from(["a", "b", "c"])
pasts = st.builds(
    lambda device, begin, took, work: Past(device, "GPU", begin, begin + took, work),
    devices, times, times, st.floats(1, 1e12),
)  # fmt: skip
works = st.builds(
    AtWork, devices, st.sampled_from(["GPU", "CPU"]), times, st.floats(1, 1e12),
    st.none() | st.floats(0, 1),
)  # fmt: skip


@settings(max_examples=40)
@given(
    now=times,
    past=st.lists(pasts, max_size=20),
    at_work=st.lists(works, max_size=4),
    waiting=st.lists(st.floats(1, 1e12), max_size=20),
)
def test_no_time_is_negative_or_out_of_order(
    now: float, past: list[Past], at_work: list[AtWork], waiting: list[float]
) -> None:
    """Whatever clocks of several nodes say."""
    try:
        got = forecast(now, past, at_work, waiting)
    except Unknown:
        return
    assert 0 <= got.low <= got.middle <= got.high < float("inf")


def test_nothing_is_forecast_where_nothing_is_known() -> None:
    """Before the first shard, and where no task is at work, it says why."""
    with pytest.raises(Unknown, match="no shard has finished yet"):
        forecast(100.0, [], [AtWork("d", "GPU", 90.0, 1.0, None)], [1.0])
    with pytest.raises(Unknown, match="no task is at work"):
        forecast(1e6, [Past("d", "GPU", 0.0, 10.0, 1.0)], [], [1.0])


def test_a_run_that_has_ended_takes_no_time() -> None:
    """Zero, and it is sure of it."""
    assert forecast(10.0, [Past("d", "GPU", 0.0, 10.0, 1.0)], [], []) == Forecast(0, 0, 0)


def test_the_first_shard_is_forecast_from_its_own_progress() -> None:
    """A quarter in 100 s leaves about 300 s, and it is less sure than after some shards."""
    first = forecast(100.0, [], [AtWork("d", "GPU", 0.0, 1.0, 0.25)], [])
    assert 150 < first.middle < 600
    past = [Past("d", "GPU", 400.0 * n, 400.0 * n + 400.0, 1.0) for n in range(8)]
    later = forecast(3300.0, past, [AtWork("d", "GPU", 3200.0, 1.0, 0.25)], [])
    assert later.high - later.low < first.high - first.low
    assert 270 < later.middle < 330


def test_a_device_that_is_new_is_taken_for_one_of_its_name() -> None:
    """Shards on slow and fast devices are not mixed: another name tells them apart."""
    past = [Past(f"f{n}", "fast", 10.0 * k, 10.0 * k + 10, 1.0) for n in (0, 1) for k in range(6)]
    past += [Past("s0", "slow", 0.0, 60.0, 1.0)]
    fast = forecast(60.0, past, [AtWork("f9", "fast", 60.0, 1.0, 0.0)], [])
    slow = forecast(60.0, past, [AtWork("s9", "slow", 60.0, 1.0, 0.0)], [])
    assert fast.middle < 15
    assert slow.middle > 40


def test_places_of_one_cpu_work_beside_each_other() -> None:
    """Four shards at once on one CPU are done four times as fast as one after the other."""
    past = [Past("CPU", "CPU", 10.0 * k, 10.0 * k + 10, 1.0) for k in range(5) for _ in range(4)]
    work = [AtWork("CPU", "CPU", 50.0, 1.0, 0.0)] * 4
    got = forecast(50.0, past, work, [1.0] * 36)
    assert 90 < got.middle < 115


def test_a_device_between_two_shards_is_still_counted() -> None:
    """A place that became free a moment ago takes the next shard."""
    past = [Past(f"d{n}", "GPU", 10.0 * k, 10.0 * k + 9, 1.0) for n in (0, 1) for k in range(6)]
    got = forecast(59.5, past, [], [1.0] * 20)
    assert 85 < got.middle < 125


def test_a_task_that_does_not_say_where_it_is_takes_a_place_that_is_free() -> None:
    """It is on a device of the others, and no place is counted twice."""
    past = [Past("CPU", "CPU", 10.0 * k, 10.0 * k + 10, 1.0) for k in range(5) for _ in range(2)]
    got = forecast(50.0, past, [AtWork(None, None, 50.0, 1.0)] * 2, [1.0] * 18)
    assert 90 < got.middle < 115


def test_a_night_between_two_runs_is_no_part_of_a_shard() -> None:
    """A run that goes on after hours is as fast as before."""
    past = [Past("d", "GPU", 10.0 * k, 10.0 * k + 10, 1.0) for k in range(5)]
    past += [Past("d", "GPU", 40000 + 10.0 * k, 40010 + 10.0 * k, 1.0) for k in range(2)]
    got = forecast(40020.0, past, [AtWork("d", "GPU", 40020.0, 1.0, 0.0)], [1.0] * 4)
    assert 45 < got.middle < 60


def test_a_slow_first_shard_is_forgotten() -> None:
    """Kernels are compiled once: the first shard says nothing of those to come."""
    past = [Past("d", "GPU", 0.0, 100.0, 1.0)]
    past += [Past("d", "GPU", 100 + 10.0 * k, 110 + 10.0 * k, 1.0) for k in range(5)]
    got = forecast(150.0, past, [AtWork("d", "GPU", 150.0, 1.0, 0.0)], [1.0] * 9)
    assert got.high < 130


def test_ten_thousand_shards_on_a_thousand_devices() -> None:
    """The work is bounded, and the answer that of a division."""
    past = [Past(f"d{n}", "GPU", 0.0, 10.0, 1.0) for n in range(1000)]
    work = [AtWork(f"d{n}", "GPU", 10.0, 1.0, None) for n in range(1000)]
    got = forecast(10.0, past, work, [1.0] * 8000)
    assert 80 < got.low <= got.high < 130
