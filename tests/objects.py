"""A server of S3 on this machine, moto, behind a layer that spoils its answers."""

import contextlib
import io
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import numpy as np
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

SECRET = "secret-c0ffee"
Fault = Callable[[Any, dict, Any], Any]
"""A WSGI application that is given the server's own as its first argument."""


class ObjectStore:
    """A bucket.

    ``faults`` make the answers to the next requests of ranges, one each; None leaves one as it is.
    ``ranges`` are those that were asked for.
    """

    def __init__(self) -> None:
        self.faults: list[Fault | None] = []
        self.ranges: list[str] = []
        self._app = DomainDispatcherApplication(create_backend_app)
        self.server = make_server(
            "127.0.0.1", 0, self._answer, threaded=True, request_handler=_Silent
        )
        self.address = f"http://127.0.0.1:{self.server.port}/bucket"
        self.env = {
            "AWS_ACCESS_KEY_ID": "somebody", "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": self.address.removesuffix("/bucket"),
            "AWS_ALLOW_HTTP": "true",
        }  # fmt: skip

    def put(self, name: str, array: np.ndarray) -> str:
        """An array as an object, which anybody may read; its address."""
        raw = io.BytesIO()
        np.save(raw, array)
        self.client.put_object(Bucket="bucket", Key=name, Body=raw.getvalue(), ACL="public-read")
        return f"s3://bucket/{name}"

    def _answer(self, environ: dict, start: Any) -> Any:
        wanted, app = environ.get("HTTP_RANGE"), self._app
        if wanted:
            self.ranges.append(wanted)
        fault = self.faults.pop(0) if wanted and self.faults else None
        return fault(app, environ, start) if fault else app(environ, start)


class _Silent(WSGIRequestHandler):
    def log_request(self, *words: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def serving() -> Iterator[ObjectStore]:
    """A store with an empty bucket, as long as it is needed."""
    store = ObjectStore()
    thread = threading.Thread(target=store.server.serve_forever)
    thread.start()
    try:
        store.client = boto3.client(
            "s3", endpoint_url=store.env["AWS_ENDPOINT_URL"], region_name="us-east-1",
            aws_access_key_id="somebody", aws_secret_access_key=SECRET,
        )  # fmt: skip
        store.client.create_bucket(Bucket="bucket")
        yield store
    finally:
        store.server.shutdown()
        thread.join()
        store.server.server_close()


def status(code: str) -> Fault:
    """An answer of this status, without content."""

    def fault(app: Any, environ: dict, start: Any) -> list[bytes]:
        start(code, [("Content-Length", "0")])
        return []

    return fault


def slow(app: Any, environ: dict, start: Any) -> Any:
    """The right answer, but later."""
    time.sleep(0.5)
    return app(environ, start)


def cut_off(app: Any, environ: dict, start: Any) -> Iterator[bytes]:
    """The first half of the right answer."""
    raw = b"".join(app(environ, start))
    yield raw[: len(raw) // 2]


def without(*headers: str) -> Fault:
    """The answer of a server that heeds some headers of a request not at all."""

    def fault(app: Any, environ: dict, start: Any) -> Any:
        return app({key: environ[key] for key in environ if key not in headers}, start)

    return fault


def before(step: Callable[[], object], then: Fault | None = None) -> Fault:
    """An answer after a step, such as one that writes another object."""

    def fault(app: Any, environ: dict, start: Any) -> Any:
        step()
        return then(app, environ, start) if then else app(environ, start)

    return fault


def weak(app: Any, environ: dict, start: Any) -> Any:
    """The right answer with an ETag that need not change where a byte does."""

    def begin(code: str, headers: list, *others: Any) -> Any:
        return start(code, [("ETag", 'W/"1"') if key == "ETag" else (key, x) for key, x in headers])

    return app(environ, begin)
