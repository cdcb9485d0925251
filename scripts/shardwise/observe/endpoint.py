"""The metrics of a run over HTTP, for a Prometheus that scrapes them: ``/metrics``, nothing else.

Whoever can reach the port can read the figures of the run and the name of its folder; so it listens
on this machine alone, unless it is told otherwise. At most :data:`CLIENTS` are served at once, each
for some seconds; the folder is looked at for one at a time.
"""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from shardwise.errors import InputError
from shardwise.observe import metrics
from shardwise.observe.folder import Observer

log = logging.getLogger(__name__)

EVERY_SECONDS = 5.0
"""A folder is looked at no more often, however often somebody asks."""

CLIENTS = 16
"""Clients that are served at once; others are sent away with 503."""

_CLIENT_SECONDS = 10.0
"""How long a client may take to say what it wants, and again to take the answer."""

_PATH = "/metrics"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 4 * CLIENTS

    def __init__(self, address: tuple[str, int], observer: Observer, every: float) -> None:
        self._observer, self._every = observer, every
        self._lock = threading.Lock()
        self._text, self._until = b"", 0.0
        self.seats = threading.BoundedSemaphore(CLIENTS)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without asking the network for this machine's name, which may take long."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]

    def text(self) -> bytes:
        """The metrics, not older than the pause between two looks."""
        with self._lock:
            if time.monotonic() >= self._until:
                seen = self._observer.look()
                self._text = metrics.text(seen).encode("utf-8", "replace")
                self._until = time.monotonic() + self._every
            return self._text

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a client by a thread of its own, where there is a seat."""
        if not self.seats.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.sendall(b"HTTP/1.0 503 Service Unavailable\r\n\r\n")
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.seats.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a client, and free its seat."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.seats.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, or says what is no HTTP, is no matter of ours."""
        log.debug("a client of the metrics was not served", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "shardwise", ""

    def setup(self) -> None:
        """Give the client its time: a timeout of the socket would begin anew with every byte."""
        super().setup()
        self._end_after_a_while()

    def finish(self) -> None:
        """Let it go."""
        self._timer.cancel()
        super().finish()

    def _end_after_a_while(self) -> None:
        self._timer = threading.Timer(_CLIENT_SECONDS, self._end)
        self._timer.daemon = True
        self._timer.start()

    def _end(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        """Answer with the metrics."""
        if self.path.partition("?")[0] != _PATH:
            self.send_error(404, f"only {_PATH} is served")
            return
        self._timer.cancel()  # a look may take its time, and is no fault of the client
        try:
            body = self.server.text()
        except Exception as error:  # a fault in a look must not end the endpoint
            log.warning("the metrics could not be made: %s", error, exc_info=True)
            self.send_error(500, "the metrics could not be made; the log says why")
            return
        finally:
            self._end_after_a_while()
        self.send_response(200)
        self.send_header("Content-Type", metrics.CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of each request: one comes every few seconds."""


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
    try:
        server = _Server((host, port), observer, every)
    except (OSError, OverflowError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"cannot listen on {host}, port {port}: {why}; name another port, or 0 for any"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
