"""The endpoint serves the metrics, whoever asks."""

import socket
import threading
import urllib.error
import urllib.request
from contextlib import closing

import pytest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from shardwise.errors import InputError
from shardwise.observe import metrics
from shardwise.observe.folder import Observer

from tests import pretend


@pytest.fixture
def observer(tmp_path):
    """An observer of a small run, which it has looked at."""
    observer = Observer(pretend.run(tmp_path, shards=3, devices=1).root)
    observer.look(pretend.NOW)
    return observer


def get(port: int):
    """What a request is answered with."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with closing(error):
            return error.code, None, error.read().decode()


def test_the_metrics_are_served(observer):
    """GET /metrics answers with the metrics, in their content type."""
    with metrics.serve(lambda: observer.last) as port:
        status, kind, text = get(port)
    assert (status, kind) == (200, CONTENT_TYPE_PLAIN_0_0_4)
    assert text == metrics.text(observer.last)


def test_before_the_first_look_there_are_no_figures():
    """The answer is an empty text: nothing is known, and nothing is made up."""
    with metrics.serve(lambda: None) as port:
        assert get(port)[::2] == (200, "")


def test_bad_clients_do_not_end_it(observer):
    """After noise, and after clients that leave at once or never say a word, others are served."""
    with metrics.serve(lambda: observer.last) as port:
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
        for noise in (b"\0\xff" * 500, b"GET /metrics HTTP/9.9\r\n", b"GET " + b"x" * 70_000, b""):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(noise)
        assert get(port)[0] == 200
        for client in silent:
            client.close()


def test_it_listens_on_this_machine_alone_and_ends(observer):
    """It listens on the loopback unless told otherwise; after it nobody listens, nothing runs."""
    before = threading.active_count()
    with metrics.serve(lambda: observer.last) as port:
        assert get(port)[0] == 200
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port))
    assert threading.active_count() == before


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", None), ("127.0.0.1", 99999),
                                            ("192.0.2.1", 0)])  # fmt: skip
def test_where_nobody_can_listen_is_refused(observer, host, port):
    """A port that is taken, or is none, and a name that is no host, are refused by name."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1] if port is None else port
        with (
            pytest.raises(InputError, match=f"cannot listen on {host}"),
            metrics.serve(lambda: observer.last, host, port),
        ):
            pass
