"""Where the time of a shard went on a GPU: it adds up, and most of a long product is computing."""

import pytest
from shardwise.multiply import session as sessions
from shardwise.multiply.job import ShardJob
from shardwise.records.timeline import STAGES

from tests import factories
from tests.gpu.conftest import needs_gpu

pytestmark = needs_gpu

LONG = """
def work(xp, block):
    out = block @ block
    for _ in range(150 if xp.__name__ == "cupy" else 0):  # the plan tries it on NumPy
        out = xp.matmul(block, block, out=out)
    return out
"""


def held(made, session) -> dict[str, float]:
    """What the receipt of a shard says that is computed on a warm device; all adds up."""
    for _ in range(2):
        ShardJob(session, "00000").run()
    receipt = factories.receipt(made)
    seconds = receipt.finished - receipt.started
    assert sum(receipt.held.values()) == pytest.approx(seconds, abs=1e-3)
    return receipt.held


def test_a_long_product_is_computing(tmp_path):
    """By events on the host's clock: whatever else goes on meanwhile is hidden."""
    own = tmp_path / "own.py"
    own.write_text(LONG)
    made = factories.plan(
        tmp_path, factories.noise((4, 4096, 4096), "float32"), backend="cupy",
        product=f"{own}:work", keep="sum", shards=1, materialize=False,
    )  # fmt: skip
    told = held(made, sessions.Session(made))
    assert told["compute"] > 0.8 * sum(told.values())
    assert list(made.results.live.glob("*")) == []


@pytest.mark.parametrize("keep", ["products", "sum"])
def test_the_time_of_a_tiny_shard_adds_up(tmp_path, keep):
    """No stage has less than none of it."""
    left = factories.noise((64, 128, 128), "float32")
    made = factories.plan(tmp_path, left, backend="cupy", keep=keep, shards=1, materialize=False)
    told = held(made, sessions.Session(made))
    assert all(told[stage] >= 0 for stage in STAGES)
    assert told["compute"] > 0
