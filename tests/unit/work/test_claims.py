"""Claims: each shard of a round has one worker, even if workers die, restart or give it back."""

import threading
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.errors import InputError, of_code
from shardwise.plan.plan import Plan
from shardwise.records.store import Store
from shardwise.work import claims
from shardwise.work.claims import Claims, Round

from tests import factories

SHARDS = 40


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """A plan of many shards."""
    folder = tmp_path_factory.mktemp("plan")
    return factories.plan(folder, factories.stack((SHARDS, 2, 2)), shards=SHARDS)


class Workers(Store):
    """Workers of a round in this process; what they finish is whole."""

    def __init__(self, plan: Plan, name: str) -> None:
        super().__init__(plan)
        self.round, self.computed = claims.load(plan, name), Counter[str]()
        self.is_whole = self.computed.__contains__

    def new(self, who: int) -> Claims:
        """A worker, or what is known of one that has died."""
        return Claims(self, self.round, who)

    def compute(self, worker: Claims) -> bool:
        """Let a worker compute a shard, if it gets one."""
        if (shard := worker.next()) is None:
            return False
        self.computed[shard] += 1
        return True

    def compute_all(self, worker: Claims) -> None:
        """Let a worker compute shards until it gets none."""
        while self.compute(worker):
            pass


@given(st.integers(0, 10_000), st.integers(1, 64))
def test_blocks_hold_all_shards_once(shards: int, workers: int) -> None:
    """Blocks keep the order, and are so many that no worker waits long for others at the end."""
    blocks = Round("", range(shards), workers, 1).blocks()
    assert [shard for block in blocks for shard in block] == list(range(shards))
    assert len(blocks) >= min(shards, 64 * workers)
    assert max(map(len, blocks[-workers:]), default=1) == 1


@given(data=st.data(), workers=st.integers(1, 5), shards=st.integers(1, SHARDS))
def test_each_shard_is_computed_once_in_any_order_of_events(plan, data, workers, shards):
    """Workers take turns; some give back what they have, some are killed and started again."""
    name = claims.begin(plan, list(plan.shards)[:shards], workers, 1)
    own = Workers(plan, name)
    living = {who: own.new(who) for who in range(workers)}
    for _ in range(data.draw(st.integers(0, 60))):
        who = data.draw(st.sampled_from(sorted(living)))
        event = data.draw(st.sampled_from(["compute", "compute", "give back", "again"]))
        if event == "compute":
            own.compute(living[who])
        elif event == "give back":
            living[who].give_back()
        else:
            own.new(who).give_back()
            living[who] = own.new(who)
    while any([own.compute(worker) for worker in living.values()]):
        pass
    claims.end(plan.results)
    assert own.computed == Counter(list(plan.shards)[:shards])
    assert not (plan.results.claims / name).exists()


def test_workers_that_claim_at_the_same_moment_share_the_shards(plan: Plan) -> None:
    """Threads stand for processes on several nodes: each claim is created only once."""
    own = Workers(plan, claims.begin(plan, list(plan.shards), 8, 1))
    threads = [threading.Thread(target=own.compute_all, args=(own.new(n),)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert own.computed == Counter(list(plan.shards))


@pytest.mark.parametrize(("code", "open_again"), [(75, True), (2, False)])
def test_a_shard_that_failed_ends_in_its_round(tmp_path: Path, code: int, open_again: bool) -> None:
    """It is not handed back; another round takes it only after code 75."""
    own_plan = factories.plan(tmp_path, factories.stack((3, 2, 2)), shards=3)
    own = Workers(own_plan, claims.begin(own_plan, list(own_plan.shards), 1, 1))
    worker = own.new(2)
    shard = worker.next()
    own.fail(shard, of_code(code, "no"))
    assert worker.open() == []
    worker.give_back()
    assert own.new(3).next() != shard
    following = Workers(own_plan, claims.begin(own_plan, [shard], 1, 2))
    assert (following.new(2).next() == shard) is open_again


def test_a_requeued_task_frees_what_it_had_claimed(plan: Plan, monkeypatch) -> None:
    """Its process is another one; the claims of other tasks stay."""
    own = Workers(plan, claims.begin(plan, list(plan.shards)[:4], 3, 1))
    for job in ("7", "8"):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        own.compute(worker := own.new(int(job)))
        worker.next()
    assert own.new(9).next() is None
    claims.forget_requeued(plan, own.round.name)
    own.compute_all(own.new(10))
    assert [*own.computed.values()] == [1] * 3, "one shard is still job 7's"


@pytest.mark.parametrize(("other", "count"), [("", 3), ("another worker", 0)])
def test_a_claim_that_exists_is_its_owners(plan: Plan, monkeypatch, other: str, count: int) -> None:
    """It may be our own: if its answer was lost, NFS asks again, and is told that it exists."""
    own, make = Workers(plan, claims.begin(plan, list(plan.shards)[:3], 1, 1)), Path.symlink_to

    def twice(link: Path, target: str) -> None:
        make(link, other or target)
        raise FileExistsError

    monkeypatch.setattr(Path, "symlink_to", twice)
    own.compute_all(own.new(2))
    assert own.computed == Counter(list(plan.shards)[:count])


def test_a_disk_without_links_is_refused(plan: Plan, monkeypatch) -> None:
    """As FAT has none: the message says what to do."""
    monkeypatch.setattr(Path, "symlink_to", Mock(side_effect=PermissionError(1, "no")))
    with pytest.raises(InputError, match=r"no symbolic links \(.*\), .* dispatch: jobs"):
        claims.begin(plan, ["00000"], 1, 1)


def test_the_end_of_a_round_frees_no_claim(tmp_path: Path) -> None:
    """A worker that claims meanwhile gets no shard of others: all claims go at once."""
    plan = factories.plan(tmp_path, factories.stack((1000, 1, 1)), shards=1000)
    for _ in range(5):
        own = Workers(plan, claims.begin(plan, list(plan.shards), 8, 1))
        for block in range(900):
            (plan.results.claims / own.round.name / str(block)).symlink_to("another worker")
        thread = threading.Thread(target=own.compute_all, args=(own.new(2),))
        thread.start()
        while not own.computed:
            pass
        claims.end(plan.results)
        thread.join()
        assert min(own.computed) >= list(plan.shards)[900]
