"""The metrics of a run over HTTP, for a Prometheus that scrapes them.

Whoever can reach the port can read the figures of the run and the name of its folder; so it listens
on this machine alone, unless it is told otherwise.
"""

import contextlib
import threading
import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, start_http_server

from shardwise.errors import InputError
from shardwise.observe.folder import Observer
from shardwise.observe.metrics import Figures
from shardwise.observe.observation import Observation

EVERY_SECONDS = 5.0
"""A folder is looked at no more often, however often somebody asks."""


class _Seldom:
    """The last look at a folder; a new one where that is too old."""

    def __init__(self, observer: Observer, every: float) -> None:
        self._observer, self._every = observer, every
        self._lock, self._until = threading.Lock(), 0.0
        self._seen: Observation | None = None

    def look(self) -> Observation:
        with self._lock:
            if self._seen is None or time.monotonic() >= self._until:
                self._seen = self._observer.look()
                self._until = time.monotonic() + self._every
            return self._seen


@contextlib.contextmanager
def serve(
    observer: Observer, host: str = "127.0.0.1", port: int = 0, every: float = EVERY_SECONDS
) -> Iterator[int]:
    """Serve the metrics of a run while the context lasts.

    Parameters
    ----------
    observer
        Nobody else may look through it meanwhile.
    host
        Where to listen; ``0.0.0.0`` lets every machine of the network read.
    port
        0: any that is free.
    every
        Seconds between two looks, at least.

    Yields
    ------
    int
        The port.

    Raises
    ------
    InputError
        Where nobody can listen there.
    """
    registry = CollectorRegistry()
    registry.register(Figures(_Seldom(observer, every).look))
    try:
        server, thread = start_http_server(port, host, registry)
    except (OSError, OverflowError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"cannot listen on {host}, port {port}: {why}; name another port, or 0 for any"
        ) from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
