"""What a quote says, and the arithmetic of a prediction."""

import numpy as np
import pytest
from shardwise.command import forecast as quotes
from shardwise.command.forecast import Trial
from shardwise.multiply import job
from shardwise.records.store import Quote, Store, quote
from shardwise.units import human_bytes

from tests import factories

REDUCE = {"ranks": 2, "statistics": ["sum", "std"]}


def test_a_quote_names_what_is_left(tmp_path):
    """A copy is read and written, a shared B is read once per shard, the sum reads all products."""
    left, right = factories.stack((6, 32, 16)), factories.stack((16, 8))
    made = factories.plan(tmp_path, left, right, product="A @ B", shards=3)
    settings = factories.settings(input="input.npy", reduce=REDUCE)

    def lines():
        own = quote(made, REDUCE, Store(made).missing())
        return " ".join(quotes.describe(made, settings, own, 2**40))

    *_, marker = made.results.plan_files(made.mark)
    marker.unlink()
    assert "3 of 3 shards to compute; the disk has 1.0 TiB free 10 jobs read 31.5 KiB " in lines()
    assert f"and write 22.0 KiB; memory per task: {human_bytes(made.shards['00000'].memory)}" in (
        lines()
    )
    marker.touch()
    factories.copy.materialize(made, "00001")
    job.run_shard(made, "00001")
    assert "2 of 3 shards to compute" in lines()
    assert "7 jobs read 23.0 KiB and write 16.0 KiB" in lines()


TRIAL = Trial(ends=10.0, start=2.0, work=[0.5, 1.5], reduce=0.1, last=3, device="CPU")


@pytest.mark.parametrize(("shards", "copies", "dispatch", "devices", "likely", "device"), [
    (6, 0, "jobs", 4, 10 + 2 * (2 + 10) + 3 * 2 + 5, 6 * 2 + 60),
    (6, 6, "jobs", 3, 10 + 2 * (2 + 2 + 10) + 3 * 2 + 5, 12 * 2 + 60),
    (6, 6, "array", 3, 10 + 2 + 2 * 10 + 3 * 2 + 5, 3 * 2 + 60),
])  # fmt: skip
def test_a_prediction_is_a_sum(shards, copies, dispatch, devices, likely, device):
    """Begin and end of the run, the busiest device's starts and work, the last jobs, the reduce."""
    ids = [f"{number:05}" for number in range(shards)]
    own = Quote(ids, ids[:copies], 10 * shards, {"for the sum": 100}, {}, "")
    settings = factories.settings(dispatch=dispatch)
    found = quotes.forecast(TRIAL, own, settings, devices)
    half = -(-shards // devices) * 10 / 2  # what the faster rate saves, and the slower one costs
    margin = 1.2
    np.testing.assert_allclose(
        found, [likely, (likely - half) / margin, (likely + half) * margin, device]
    )
