"""A worker process: one device, to its end, and shards through it as they are assigned.

It talks to its parent by one pipe: ids of shards come in, events go out. Where the pipe closes, the
parent is dead, and the worker ends at once. It never imports mpi4py.
"""

import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Collection
from multiprocessing.connection import Connection
from pathlib import Path

from shardwise import cli, multiply, planfile
from shardwise.dispatch.crew import Event

log = logging.getLogger(__name__)


def main(
    pipe: Connection, worker: int, plan_path: str, memory: int | None, wait: float | None,
    prefer: int, without: Collection[str],
) -> None:  # fmt: skip
    """Work until the parent says otherwise, by SIGTERM or by its death."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the parent's matter
    signal.signal(signal.SIGTERM, cli.terminate)
    plan = planfile.load(Path(plan_path))
    shards: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, shards), daemon=True).start()
    pipe.send(Event(worker, "ready"))
    while True:
        shard, began = shards.get(), time.monotonic()
        try:
            multiply.run_shard(plan, shard, memory, wait)
        except Exception as error:
            code, words = cli.verdict(error)
            pipe.send(Event(worker, "failed", shard, code, words))
        else:
            pipe.send(Event(worker, "done", shard, seconds=time.monotonic() - began))


def _listen(pipe: Connection, shards: "queue.SimpleQueue[str]") -> None:
    while True:
        try:
            shards.put(pipe.recv())
        except (EOFError, OSError):
            os._exit(1)
