"""The dealer: every shard once, whoever comes and goes, and workers that end together."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from shardwise.dispatch.dealer import Dealer

from tests.workspace import REPO

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(REPO / "benchmarks")
    from makespan import best_of_equal, lower_bound, makespan

MANY = settings(max_examples=150)
SPEEDS = st.lists(st.sampled_from([1, 1.25, 2, 4]), min_size=1, max_size=8)
AHEAD = st.sampled_from([None, 0.1, 0.5, 0.9])
ROUNDING = 1 + 1e-9


def dealer_of(costs: dict[str, float], *workers: str) -> Dealer:
    """A dealer that knows these workers."""
    dealer = Dealer(costs)
    for worker in workers:
        dealer.join(worker)
    return dealer


def equal(shards: int) -> dict[str, float]:
    """Shards of cost 1."""
    return {f"{shard:05}": 1.0 for shard in range(shards)}


@MANY
@given(SPEEDS, st.integers(5, 50), AHEAD)
def test_equal_shards_end_soon_after_the_bound(speeds, each, ahead):
    """One shard on the slowest worker at most; from 20 shards a worker on, a twentieth."""
    costs = equal(each * len(speeds))
    end = makespan(Dealer(costs), costs, speeds, ahead)
    bound = lower_bound(list(costs.values()), speeds)
    assert end <= (bound + 1 / min(speeds)) * ROUNDING
    if each >= 20:
        assert end <= 1.05 * bound


@MANY
@given(SPEEDS, st.integers(10, 50))
def test_equal_shards_end_at_the_best_time_there_is(speeds, each):
    """Nothing is lost by dealing one by one, once each worker has ended a shard."""
    costs = equal(each * len(speeds))
    end = makespan(Dealer(costs), costs, speeds)
    assert end <= best_of_equal(len(costs), speeds) * ROUNDING


@MANY
@given(SPEEDS, st.data(), AHEAD)
def test_known_costs_end_one_shard_after_the_bound(speeds, data, ahead):
    """However the costs are spread: one largest shard on the slowest worker, at most."""
    each = st.floats(0.01, 100)
    drawn = data.draw(st.lists(each, min_size=1, max_size=20 * len(speeds)))
    costs = {f"{place:05}": cost for place, cost in enumerate(drawn)}
    end = makespan(Dealer(costs), costs, speeds, ahead)
    assert end <= (lower_bound(drawn, speeds) + max(drawn) / min(speeds)) * ROUNDING


def slow_and_fast(waiting: int) -> Dealer:
    """A slow worker that is free, and one ten times as fast with 0.1 s to go, at 10 s."""
    dealer = dealer_of(equal(12 + waiting), "slow", "fast")
    dealer.ask("slow", 0)
    for second in range(10):
        shard = dealer.ask("fast", second)
        dealer.done("fast", shard, second + 1)
    dealer.ask("fast", 10)
    dealer.done("slow", "00000", 10)
    return dealer


def test_a_slow_worker_is_not_given_the_last_shard():
    """A fast one ends it sooner, although it is busy; the slow one asks in vain."""
    dealer = slow_and_fast(3)
    assert dealer.ask("slow", 10) is None
    assert not dealer.empty
    dealer.done("fast", "00011", 11)
    assert dealer.ask("fast", 11) == "00012"


def test_a_shard_held_back_is_dealt_once_the_fast_worker_is_gone():
    """The slow one gets what it was refused, and what the other had."""
    dealer = slow_and_fast(1)
    assert dealer.ask("slow", 10) is None
    (lost,) = dealer.leave("fast")
    dealer.again(lost)
    assert dealer.ask("slow", 10) == "00012"
    dealer.done("slow", "00012", 20)
    assert dealer.ask("slow", 20) == lost
    assert dealer.empty


def test_nobody_waits_for_a_worker_that_hangs():
    """The later a fast worker is, the less is left to it; in the end the slow one is dealt."""
    dealer = slow_and_fast(1)
    assert dealer.ask("slow", 10.5) is None
    assert dealer.ask("slow", 30) == "00012"


def test_the_largest_come_first_and_failed_ones_last():
    """Equal ones in the order of the plan; a failed shard in its place where it is wanted."""
    dealer = dealer_of({"00000": 1, "00001": 3, "00002": 2, "00003": 3}, "a")
    dealt = [dealer.ask("a", 0)]
    dealer.again("00001")
    dealt += [dealer.ask("a", 0)]
    dealer.again("00003", last=False)
    dealt += [dealer.ask("a", 0)]
    dealer.drop("00003")
    for _ in range(3):
        dealt.append(dealer.ask("a", 0))
        dealer.done("a", dealt[-1], 1)
    assert dealt == ["00001", "00003", "00003", "00002", "00000", "00001"]
    assert dealer.empty
    assert dealer.ask("a", 2) is None


@pytest.mark.parametrize(
    ("workers", "granted"), [("a", [1, 1, 1, 1, 1, 1, 0]), ("ab", [0, 1, 0, 0, 0, 0, 0])]
)
def test_asking_ahead_needs_a_known_speed_and_much_that_waits(workers, granted):
    """A worker is promised a second shard only while others do not run short of theirs."""
    dealer = dealer_of(equal(5 + 2 * len(workers)), *workers)
    for worker in workers[1:]:
        dealer.ask(worker, 0)
    shard = dealer.ask("a", 0)
    ahead = []
    for second in range(7):
        ahead.append(dealer.ask("a", second + 0.5))
        dealer.done("a", shard, second + 1)
        shard = ahead[-1] or dealer.ask("a", second + 1)
    assert [bool(shard) for shard in ahead] == granted


def test_a_worker_joins_once():
    """Two of one name would be taken for one."""
    with pytest.raises(ValueError, match="joined already"):
        dealer_of({}, "a", "a")


class Crews(RuleBasedStateMachine):
    """Workers come, work, fail, die and go in any order; no shard is lost or dealt twice."""

    def __init__(self) -> None:
        super().__init__()
        self.costs = {f"{n:05}": 1.0 + n % 3 for n in range(30)}
        self.dealer = Dealer(self.costs)
        self.has: dict[int, deque[str]] = {}
        self.ended: set[str] = set()
        self.lost: set[str] = set()
        self.now = 0.0
        self.names = iter(range(10**6))

    @rule()
    def joins(self):
        """A worker more."""
        name = next(self.names)
        self.dealer.join(name)
        self.has[name] = deque()

    @precondition(lambda self: self.has)
    @rule(data=st.data(), seconds=st.floats(0, 5))
    def asks(self, data, seconds):
        """A worker asks, also ahead."""
        self.now += seconds
        name = data.draw(st.sampled_from(sorted(self.has)))
        shard = self.dealer.ask(name, self.now)
        if shard is not None:
            out = {s for shards in self.has.values() for s in shards}
            assert shard not in out | self.ended | self.lost
            self.has[name].append(shard)

    @precondition(lambda self: any(self.has.values()))
    @rule(data=st.data(), seconds=st.floats(0, 5), how=st.sampled_from(["done", "again", "drop"]))
    def ends(self, data, seconds, how):
        """A worker's shard ends: well, badly, or for good."""
        self.now += seconds
        name = data.draw(st.sampled_from([name for name, shards in self.has.items() if shards]))
        shard = self.has[name].popleft()
        if how == "done":
            self.dealer.done(name, shard, self.now)
            self.ended.add(shard)
        elif how == "again":
            self.dealer.again(shard, last=data.draw(st.booleans()))
        else:
            self.dealer.drop(shard)
            self.lost.add(shard)

    @precondition(lambda self: self.has)
    @rule(data=st.data())
    def dies(self, data):
        """A worker goes, and what it had waits again."""
        name = data.draw(st.sampled_from(sorted(self.has)))
        shards = self.dealer.leave(name)
        assert shards == list(self.has.pop(name))
        for shard in shards:
            self.dealer.again(shard)

    @invariant()
    def nothing_is_left_undealt(self):
        """Where nobody computes, one of the workers that ask gets a shard; `empty` is true."""
        out = {shard for shards in self.has.values() for shard in shards}
        waits = len(self.costs) > len(out) + len(self.ended) + len(self.lost)
        assert self.dealer.empty == (not waits)
        if waits and self.has and not out:
            for name in self.has:
                shard = self.dealer.ask(name, self.now)
                if shard is not None:
                    self.dealer.again(shard, last=False)
                    return
            raise AssertionError("no worker gets a shard")


TestCrews = Crews.TestCase
TestCrews.settings = settings(max_examples=50, stateful_step_count=60)
