"""A local S3 server, moto, behind a layer that puts faults into its answers."""

import contextlib
import io
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

SECRET = "secret-c0ffee"
Fault = Callable[[Any, dict, Any], Any]
"""A WSGI application whose first argument is the application of the server."""


class ObjectStore:
    """A bucket that anybody may read.

    ``faults`` answer the next range requests, one each; None leaves an answer as it is.
    ``ranges`` are the byte ranges requested so far.
    """

    def __init__(self) -> None:
        import boto3
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        self.faults: list[Fault | None] = []
        self.ranges: list[str] = []
        self._app = DomainDispatcherApplication(create_backend_app)
        self.server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        address = f"http://127.0.0.1:{self.server.port}"
        own = {"aws_access_key_id": "somebody", "aws_secret_access_key": SECRET}
        self.env = {key.upper(): value for key, value in own.items()} | {
            "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": address, "AWS_ALLOW_HTTP": "true",
        }  # fmt: skip
        self.bucket = f"{address}/bucket"
        self._client = boto3.client("s3", "us-east-1", endpoint_url=address, **own)

    def put(self, name: str, content: np.ndarray | bytes) -> str:
        """Store an object, an array as ``.npy``; return its address."""
        raw = io.BytesIO()
        raw.write(content) if isinstance(content, bytes) else np.save(raw, content)
        self._client.create_bucket(Bucket="bucket")
        self._client.put_object(Bucket="bucket", Key=name, Body=raw.getvalue(), ACL="public-read")
        return f"s3://bucket/{name}"

    def put_folder(self, name: str, folder: Path) -> str:
        """Store the files of a folder as objects; return the prefix of their addresses."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(f"{name}/{path.relative_to(folder)}", path.read_bytes())
        return f"s3://bucket/{name}"

    def remove(self, name: str) -> None:
        self._client.delete_object(Bucket="bucket", Key=name)

    def _answer(self, environ: dict, start: Any) -> Any:
        fault = None
        if wanted := environ.get("HTTP_RANGE"):
            self.ranges.append(wanted)
            fault = self.faults.pop(0) if self.faults else None
        return fault(self._app, environ, start) if fault else self._app(environ, start)


@contextlib.contextmanager
def serving() -> Iterator[ObjectStore]:
    """Serve a store inside a ``with`` block; it logs no request."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    store = ObjectStore()
    thread = threading.Thread(target=store.server.serve_forever)
    thread.start()
    try:
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


def cut_off(app: Any, environ: dict, start: Any) -> Iterator[bytes]:
    """The first half of the right answer."""
    raw = b"".join(app(environ, start))
    yield raw[: len(raw) // 2]


def heedless(header: str, before: Callable[[], object] = lambda: None) -> Fault:
    """The answer of a server that ignores a header; ``before`` is called first."""

    def fault(app: Any, environ: dict, start: Any) -> Any:
        before()
        return app({key: environ[key] for key in environ if key != header}, start)

    return fault


def weak(app: Any, environ: dict, start: Any) -> Any:
    """The right answer with a weak ETag, which need not change when a byte does."""

    def begin(code: str, headers: list, *others: Any) -> Any:
        return start(code, [("ETag", 'W/"1"') if key == "ETag" else (key, x) for key, x in headers])

    return app(environ, begin)
