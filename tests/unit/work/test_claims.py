"""Claims: each shard of a round has one worker, whoever comes, dies, gives back or comes again."""

import os
import random
import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.errors import IntegrityError
from shardwise.plan.plan import Plan
from shardwise.records import failures
from shardwise.work import claims
from shardwise.work.claims import Claims, cut_blocks

from tests import factories

SHARDS = 40


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """A plan of many shards."""
    folder = tmp_path_factory.mktemp("plan")
    return factories.plan(folder, factories.stack((SHARDS, 2, 2)), shards=SHARDS)


@pytest.fixture
def own_plan(tmp_path: Path) -> Plan:
    """A plan of a few shards, for a test that leaves failures."""
    return factories.plan(tmp_path, factories.stack((3, 2, 2)), shards=3)


class Workers:
    """Workers of a round in this process; what they finish is whole."""

    def __init__(self, plan: Plan, name: str) -> None:
        self.plan, self.round = plan, claims.load(plan, name)
        self.whole: set[str] = set()
        self.computed: Counter[str] = Counter()

    def new(self, who: str, again: bool = False) -> Claims:
        """A worker, perhaps one that is started again."""
        return Claims(self.plan, self.round, who, self.whole.__contains__, again)

    def compute(self, worker: Claims) -> bool:
        """Let a worker compute a shard, if it gets one."""
        if (claimed := worker.next(idle=True)) is None:
            return False
        self.computed[claimed[0]] += 1
        self.whole.add(claimed[0])
        return True


@given(st.integers(0, 10_000), st.integers(1, 64))
def test_blocks_cover_all_places_once_and_shrink(shards: int, workers: int) -> None:
    """No block is larger than one before it, and the last rounds have blocks of one."""
    blocks = list(cut_blocks(shards, workers))
    assert [place for block in blocks for place in block] == list(range(shards))
    sizes = [len(block) for block in blocks]
    assert sizes == sorted(sizes, reverse=True)
    assert not sizes or sizes[-1] == 1


@given(data=st.data(), workers=st.integers(1, 5), shards=st.integers(1, SHARDS))
def test_each_shard_is_computed_once_in_any_order_of_events(plan, data, workers, shards):
    """Workers take turns; some give back what they have, some are killed and started again."""
    name = claims.begin(plan, list(plan.shards)[:shards], workers, 2)
    own = Workers(plan, name)
    living = {who: own.new(who) for who in map(str, range(workers))}
    for _ in range(data.draw(st.integers(0, 60))):
        who = data.draw(st.sampled_from(sorted(living)))
        event = data.draw(st.sampled_from(["compute", "compute", "give back", "again"]))
        if event == "compute":
            own.compute(living[who])
        elif event == "give back":
            living[who].give_back()
        else:
            living[who] = own.new(who, again=True)
    while any([own.compute(worker) for worker in living.values()]):
        pass
    claims.end(plan.results, name)
    assert own.computed == Counter(list(plan.shards)[:shards])
    assert not (plan.results.claims / name).exists()


def test_workers_that_claim_at_the_same_moment_share_the_shards(plan: Plan) -> None:
    """Threads of one process, as processes of several nodes: a claim is created once."""
    own = Workers(plan, claims.begin(plan, list(plan.shards), 8, 0))
    found: list[str] = []

    def take(worker: Claims) -> None:
        while claimed := worker.next(idle=True):
            found.append(claimed[0])

    threads = [threading.Thread(target=take, args=(own.new(str(n)),)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(plan.shards)


def test_a_dead_worker_keeps_its_claims_and_another_round_has_its_own(plan: Plan) -> None:
    """What it has not computed is nobody's in this round, and everybody's in the next."""
    name = claims.begin(plan, list(plan.shards), 1, 0)
    own = Workers(plan, name)
    own.compute(own.new("dead"))
    other = own.new("other")
    while own.compute(other):
        pass
    left = [shard for shard in plan.shards if shard not in own.whole]
    assert len(left) == len(next(cut_blocks(SHARDS, 1))) - 1
    following = claims.begin(plan, left, 1, 0)
    assert following != name
    again = Workers(plan, following)
    worker = again.new("other")
    while again.compute(worker):
        pass
    assert sorted(again.computed) == left


def test_a_shard_that_failed_is_tried_again_by_who_is_idle(own_plan: Plan) -> None:
    """As often as the round says, after 75 alone; each try is one worker's."""
    own = Workers(own_plan, claims.begin(own_plan, list(own_plan.shards), 2, retries=1))
    one, other = own.new("one"), own.new("other")
    tries: dict[str, list[int]] = {shard: [] for shard in own_plan.shards}
    codes = dict(zip(own_plan.shards, (75, 2, 75), strict=True))
    for worker in random.choices([one, other], k=20):
        if claimed := worker.next(idle=True):
            shard, attempt = claimed
            tries[shard].append(attempt)
            name = own_plan.shards[shard].name
            failures.note(own_plan.results, name, codes[shard], "no", attempt=attempt)
    assert list(tries.values()) == [[1, 2], [1], [1, 2]]
    following = claims.load(own_plan, claims.begin(own_plan, list(own_plan.shards), 1, 0))
    assert following.attempt == 3, "a further round counts on"
    assert one.give_back() == 0, "what has failed is not handed back"


def test_claims_of_another_plan_are_refused(own_plan: Plan, tmp_path: Path) -> None:
    """A task that waited for days finds that the plan is not its own."""
    name = claims.begin(own_plan, list(own_plan.shards), 2, 0)
    other = factories.plan(tmp_path, factories.stack((3, 2, 2)), shards=2)
    with pytest.raises(IntegrityError, match=r"plan\.tsv is not the plan of these claims"):
        claims.load(other, name)


def test_a_worker_after_the_end_of_its_round_has_nothing_to_do(own_plan: Plan) -> None:
    """Its folder is gone, and the next round, of other shards, has another name."""
    name = claims.begin(own_plan, list(own_plan.shards), 2, 0)
    worker = Workers(own_plan, name).new("late")
    claims.end(own_plan.results, name)
    claims.begin(own_plan, list(own_plan.shards)[1:], 2, 0)
    assert worker.next(idle=False) is None
    assert os.listdir(own_plan.results.root)
