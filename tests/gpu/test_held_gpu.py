"""Warming up a session on a GPU before its first shard."""

import pytest
from shardwise.multiply.job import Session, ShardJob, warm

from tests import factories
from tests.gpu.conftest import needs_gpu


@needs_gpu
@pytest.mark.parametrize("right", [None, factories.noise((8, 5))])
def test_warming_goes_through_and_leaves_nothing(tmp_path, caplog, right):
    """Warming logs no error, and the first shard after it is computed and proven."""
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
