"""The logs of the shards of a worker, whose threads work on several at a time.

The records of a shard are kept until it has ended. If it has failed, or any record is a warning or
worse, they become its own log file. Otherwise they go to the worker's log, which saves a file.
"""

import logging
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from shardwise.files.paths import Results, make_folder
from shardwise.plan.plan import Shard


class ShardLogs(logging.Handler):
    """Wraps the log handler of this process, and sorts what its threads log by shard."""

    def __init__(self, results: Results) -> None:
        super().__init__()
        root = logging.getLogger()
        self._results, self._own = results, root.handlers[0]
        self._kept: dict[str, list[logging.LogRecord]] = defaultdict(list)
        self._shards: dict[int, str] = {}  # by thread
        self._main = threading.get_ident()
        root.handlers[0] = self

    @contextmanager
    def of(self, shard: Shard) -> Iterator[None]:
        """Let this thread log for a shard; if it is the main one, unassigned threads do, too."""
        thread = threading.get_ident()
        self._shards[thread] = shard.name
        try:
            yield
        finally:
            del self._shards[thread]

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record of a shard; pass on any other."""
        # A thread without a shard was started by the main thread, which computes.
        shard = self._shards.get(record.thread or 0, self._shards.get(self._main))
        if shard is None:
            self._own.handle(record)
        else:
            self._kept[shard].append(record)

    def end(self, shard: Shard, well: bool) -> None:
        """Pass on or write the records of a shard that has ended, well or not."""
        records = self._kept.pop(shard.name, [])
        if well and all(record.levelno <= logging.INFO for record in records):
            self._pass_on(records)
            return
        path = self._results.log("multiply", shard.name)
        with suppress(OSError):  # without room for a log, the failure is told elsewhere
            make_folder(path.parent)
            with open(path, "a", encoding="utf-8", errors="replace") as file:
                file.writelines(f"{self._own.format(record)}\n" for record in records)

    def flush(self) -> None:
        """Pass on the records of shards that will not end."""
        for shard in list(self._kept):  # another thread may end one meanwhile
            self._pass_on(self._kept.pop(shard, []))

    def _pass_on(self, records: list[logging.LogRecord]) -> None:
        for record in records:
            self._own.handle(record)
