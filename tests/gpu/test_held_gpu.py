"""Where the time of a shard went on a GPU: it adds up, and most of a long product is computing."""

import pytest
from shardwise.multiply.job import ShardJob, warm
from shardwise.multiply.session import Session

from tests import factories
from tests.gpu.conftest import needs_gpu

LONG = """
def work(xp, block):
    out = block @ block
    for _ in range(150 if xp.__name__ == "cupy" else 0):  # the plan tries it on NumPy
        out = xp.matmul(block, block, out=out)
    return out
"""


@needs_gpu
def test_a_long_product_is_computing(tmp_path):
    """By events on the host's clock: whatever else goes on meanwhile is hidden."""
    own = tmp_path / "own.py"
    own.write_text(LONG)
    made = factories.plan(
        tmp_path, factories.noise((4, 4096, 4096), "float32"), backend="cupy",
        product=f"{own}:work", keep="sum", shards=1, materialize=False,
    )  # fmt: skip
    session = Session(made)
    for _ in range(2):  # the second time on a warm device
        ShardJob(session, "00000").run()
    receipt = factories.receipt(made)
    seconds = receipt.finished - receipt.started
    assert sum(receipt.held.values()) == pytest.approx(seconds, abs=1e-3)
    assert receipt.held["compute"] > 0.8 * seconds
    assert list(made.results.live.glob("*")) == []


@needs_gpu
@pytest.mark.parametrize("right", [None, factories.noise((8, 5))])
def test_warming_goes_through_and_leaves_nothing(tmp_path, caplog, right):
    """Else the first shard would meet what was not made, and only the log would tell."""
    made = factories.plan(
        tmp_path, factories.noise((40, 8, 8)), right, shards=1, backend="cupy", materialize=False,
        product="A @ A" if right is None else "A @ B",
    )  # fmt: skip
    session = Session(made)
    with caplog.at_level("INFO", "shardwise.multiply"):
        warm(session)
    assert caplog.messages == []
    ShardJob(session, "00000").run()
    assert factories.receipt(made).proof
