"""What a quote says, and the arithmetic of a prediction."""

import numpy as np
import pytest
from shardwise.command import forecast as quotes
from shardwise.command.forecast import Trial
from shardwise.multiply import job
from shardwise.records.quote import Quote, quote
from shardwise.records.store import Store
from shardwise.units import human_bytes

from tests import factories

REDUCE = {"ranks": 2, "statistics": ["sum", "std"]}
GOLDEN = """\
ROOT: 3 of 3 shards to compute, in 10 jobs
reads   31.5 KiB: 12.0 KiB to copy, 13.5 KiB for products, 6.0 KiB for the sum
writes  22.0 KiB: 12.0 KiB copies, 6.0 KiB products, 4.0 KiB results; the disk has 1.0 TiB free
memory  MEMORY per task
"""
LATER = [
    "2 of 3 shards to compute, in 7 jobs",
    "23.0 KiB: 8.0 KiB to copy, 9.0 KiB for products, 6.0 KiB for the sum",
    "16.0 KiB: 8.0 KiB copies, 4.0 KiB products, 4.0 KiB results; the disk has 1.0 TiB free",
]


def test_a_quote_names_what_is_left(tmp_path):
    """A copy is read and written, a shared B is read once per shard, the sum reads all products."""
    left, right = factories.stack((6, 32, 16)), factories.stack((16, 8))
    made = factories.plan(tmp_path, left, right, product="A @ B", shards=3)
    settings = factories.settings(input="input.npy", reduce=REDUCE)

    def lines():
        own = quote(made, REDUCE, Store(made).missing())
        return list(quotes.describe(made, settings, own, 2**40))

    *_, marker = made.results.plan_files(made.mark)
    marker.unlink()
    memory = human_bytes(made.shards["00000"].memory)
    golden = GOLDEN.replace("ROOT", str(made.results.root)).replace("MEMORY", memory)
    assert lines() == golden.splitlines()
    marker.touch()
    factories.copy.materialize(made, "00001")
    job.run_shard(made, "00001")
    assert [line.split(maxsplit=1)[1] for line in lines()[:3]] == LATER


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
