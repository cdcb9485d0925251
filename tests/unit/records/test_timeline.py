"""Where time went: each moment counts once, for the phase that holds the shard up."""

import pytest
from shardwise.multiply import job
from shardwise.plan import memory

from tests import factories


@pytest.mark.parametrize("over", [{}, {"keep": "sum"}, {"materialize": True}, {"verify": False}])
def test_the_phases_of_a_receipt_add_up(tmp_path, monkeypatch, over):
    """Their sum is the time from the start of the shard to its end."""
    monkeypatch.setattr(memory, "HOST_BATCH_BYTES", 5 * 512)
    left = factories.stack((40, 8, 8), "float64")
    plan = factories.plan(tmp_path, left, shards=1, **{"materialize": False} | over)
    job.run_shard(plan, "00000")
    made = factories.receipt(plan)
    assert sum(made.held.values()) == pytest.approx(made.finished - made.started, abs=1e-4)
    assert made.held["compute"] > 0
    assert made.held["read"] > 0
