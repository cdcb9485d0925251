"""What a quote says, and the arithmetic of a prediction."""

from argparse import Namespace

from shardwise.command import forecast
from shardwise.multiply import job
from shardwise.units import human_bytes, seconds

from tests import factories


def test_a_quote_names_what_is_left(tmp_path, capsys, monkeypatch):
    """A copy is read and written, a shared B is read once per shard, the sum reads all products.

    A prediction adds the ends of a run to the work of the device that computes the most shards.
    """
    monkeypatch.setattr(forecast, "try_shards", lambda *_: (10.0, 1.5))
    left, right = factories.stack((6, 32, 16)), factories.stack((16, 8))
    made = factories.plan(tmp_path, left, right, product="A @ B", shards=3)
    reduce = {"ranks": 2, "statistics": ["sum", "std"]}
    settings = factories.settings(input="input.npy", reduce=reduce)

    def said(**options):
        forecast.show(made, settings, Namespace(profile=None, **options))
        return capsys.readouterr().out

    first = said(trial=False, devices=None)
    assert "3 of 3 shards to compute; the disk has " in first
    assert " free\na run reads 31.5 KiB " in first
    memory = human_bytes(made.shards["00000"].memory)
    assert f"and writes 22.0 KiB; memory per task: {memory}" in first
    work = 6 * 4 * (32 * 16 + 32 * 8) + 3 * 4 * 16 * 8
    told = said(trial=True, devices=2)
    assert f"\ntime {seconds(10 + 2 / 3 * 1.5 * work)} with 2 devices (" in told
    assert f"for {1.5 * work / 3600:.3g} hours" in told
    factories.copy.materialize(made, "00001")
    job.run_shard(made, "00001")
    rest = said(trial=False, devices=None)
    assert "2 of 3 shards to compute" in rest
    assert "a run reads 23.0 KiB and writes 16.0 KiB" in rest
