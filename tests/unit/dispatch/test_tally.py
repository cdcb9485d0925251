"""How a dispatch counts its shards: what is tried again, what it says, and how it ends."""

import logging
import subprocess
import sys

import pytest
from shardwise.dispatch import tally
from shardwise.dispatch.tally import Tally
from shardwise.errors import InputError, IntegrityError, ShardwiseError, TryAgain

from tests import factories
from tests.factories import SCRIPTS
from tests.unit.dispatch.array.test_puller import Time


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """A plan of six shards."""
    folder = tmp_path_factory.mktemp("plan")
    return factories.plan(folder, factories.stack((6, 2, 2)), shards=6)


IDS = [f"0000{i}" for i in range(6)]


@pytest.fixture
def lines(caplog):
    """What was logged, as (level, text); the call empties it."""
    caplog.set_level(logging.INFO)

    def taken():
        found = [(r.levelname, r.getMessage()) for r in caplog.records]
        caplog.clear()
        return found

    return taken


def test_a_shard_goes_from_waiting_to_running_to_whole(plan):
    """Every shard is in exactly one place; a product that turns up behind a failure is taken."""
    count = Tally(plan, IDS[:4], 0)
    count.began("00001", "gpu1")
    count.began("00002", "gpu2")
    count.failed("00001", None, "lost with its node")
    count.done("00001")
    assert count.waiting == ["00000", "00003"]
    assert (count.running, count.whole, count.lost) == ({"00002": "gpu2"}, {"00001"}, {})
    assert not count.ended
    for shard in count.waiting + list(count.running):
        count.done(shard)
    count.finish()


def test_going_back_counts_as_no_try(plan):
    """A shard that comes back through no failure of its own keeps all its tries."""
    count = Tally(plan, IDS[:2], 1)
    for _ in range(5):
        count.began("00000", "here")
        count.back("00000")
    assert count.waiting == ["00001", "00000"]
    assert count.failed("00000", 75, "busy")
    assert not count.failed("00000", 75, "busy")


@pytest.mark.parametrize("code", [75, None, 137])
def test_what_may_pass_is_tried_again(plan, code, lines):
    """Busy, killed or lost: again, behind the others, while tries are left; bad input never."""
    assert not any(Tally(plan, IDS[:1], 5).failed("00000", final, "x") for final in (1, 2, 3))
    lines()
    count = Tally(plan, IDS[:2], 2)
    assert count.failed("00000", code, "x")
    assert lines() == [("WARNING", "shard 00000: x; try 2 of 3 follows")]
    assert count.waiting == ["00001", "00000"]
    assert count.failed("00000", code, "x")
    assert not count.failed("00000", code, "the last word")
    assert count.lost == {"00000": (code, "the last word")}
    assert count.waiting == ["00001"]


def test_the_shards_log_says_why_once(plan):
    """The reason of a killed try goes into its log; what it said itself is not repeated."""
    count, log = Tally(plan, IDS, 9), plan.results.log("multiply", "00003")
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"2026-01-01 00:00:00,000 INFO begins\nhalf a li")
    count.failed("00003", None, "killed\nby signal 9")
    count.failed("00003", None, "killed\nby signal 9")
    text = log.read_text()
    assert text.startswith("2026-01-01 00:00:00,000 INFO begins\nhalf a li\n")
    assert text.count("ERROR killed by signal 9\n") == 1


def test_lines_are_rare_but_news_come_at_once(plan, lines):
    """One line in some seconds, none without a change, failures and the end at once."""
    clock = Time()
    count = Tally(plan, IDS[2:], 1, clock)
    count.report()
    assert lines() == [("INFO", "2 of 6 shards done, 4 waiting")]
    count.began("00002", "here")
    count.report()
    assert lines() == []
    clock.now += tally.LINE_SECONDS
    count.report()
    assert lines() == [("INFO", "2 of 6 shards done, 1 running, 3 waiting")]
    count.failed("00002", 3, "damaged")
    count.report()
    assert lines() == [
        ("WARNING", "shard 00002: damaged; it is not tried again"),
        ("INFO", "2 of 6 shards done, 1 failed, 3 waiting"),
    ]
    for shard in IDS[3:]:
        count.done(shard)
    count.report()
    assert lines() == [("INFO", "5 of 6 shards done, 1 failed")]


def test_a_note_comes_once_a_minute(plan, lines):
    """The same text once a minute, another one at once."""
    clock = Time()
    count = Tally(plan, IDS, 1, clock)
    for text in ("no answer", "no answer", "another"):
        count.note(text)
    clock.now += tally.NOTE_SECONDS
    count.note("no answer")
    assert [text for _, text in lines()] == ["no answer", "another", "no answer"]


@pytest.mark.parametrize(
    ("codes", "error"),
    [
        ((75, None, 137), TryAgain),
        ((75, 1, 75), ShardwiseError),
        ((75, 1, 2), InputError),
        ((2, 1, 3), IntegrityError),
    ],
)
def test_the_end_names_every_shard_that_failed(plan, lines, codes, error):
    """One line each, with reason and log; the exit code is the first of 3, 2, 1 and 75."""
    count = Tally(plan, IDS, 0)
    for shard, code in zip(("00002", "00001", "00000"), codes, strict=True):
        count.failed(shard, code, f"reason {code}")
    for shard in IDS[3:]:
        count.done(shard)
    lines()
    with pytest.raises(ShardwiseError, match="of 6 shards 3 failed; 3 are whole") as met:
        count.finish()
    assert type(met.value) is error
    logs = plan.results.log("multiply").parent
    assert [text for level, text in lines() if level == "ERROR"] == [
        f"shard 0000{i}: reason {code} (log: {logs}/0000{i}.log)"
        for i, code in enumerate(reversed(codes))
    ]


def test_an_end_with_shards_left_is_no_success(plan):
    """Shards that nobody has computed are never taken for whole."""
    with pytest.raises(TryAgain, match="of 6 shards 6 were not computed"):
        Tally(plan, IDS, 0).finish()


def test_one_dispatcher_at_a_time(plan):
    """A second one is told who is at work; after its end, or death, the next one may start."""
    told = pytest.raises(TryAgain, match=r"are being computed by process \d+ on .* since 20")
    with tally.holding(plan.results), told, tally.holding(plan.results):
        pass
    program = (
        "import os, signal; from pathlib import Path; from shardwise.dispatch import tally\n"
        "from shardwise.files.paths import Results\n"
        f"with tally.holding(Results(Path({str(plan.results.root)!r}))):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    died = subprocess.run(
        [sys.executable, "-c", program], check=False, env={"PYTHONPATH": str(SCRIPTS)}
    )
    assert died.returncode == -9
    with tally.holding(plan.results):
        pass
