"""The logs of a worker's shards, sorted while its threads end some of them."""

import logging
from types import SimpleNamespace

from shardwise.files.paths import Results
from shardwise.work.logs import ShardLogs


class Ending(logging.Handler):
    """The log of a worker, one of whose shards ends while another's records are written."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def emit(self, record):
        """Note a record, as another thread would end a shard."""
        self.seen.append(record.getMessage())
        self.logs.end(SimpleNamespace(name="b"), well=True)


def test_a_shard_may_end_while_the_rest_is_flushed(tmp_path, monkeypatch, caplog):
    """As when a signal ends the worker: each record is written once."""
    caplog.set_level(logging.INFO)
    own = Ending()
    monkeypatch.setattr(logging.getLogger(), "handlers", [own])
    own.logs = ShardLogs(Results(tmp_path))
    for shard in "abc":
        with own.logs.of(SimpleNamespace(name=shard)):
            logging.getLogger().info("of %s", shard)
    own.logs.flush()
    assert sorted(own.seen) == ["of a", "of b", "of c"]
