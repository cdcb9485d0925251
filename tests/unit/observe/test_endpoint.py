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


class Counting(Observer):
    """An observer that counts its looks, and fails where it is told to."""

    looks, error = 0, None

    def look(self, at=None):
        """A look at the moment for which the folder was made."""
        self.looks += 1
        if self.error:
            raise self.error
        return super().look(pretend.NOW)


@pytest.fixture
def observer(tmp_path):
    """An observer of a small run."""
    return Counting(pretend.run(tmp_path, shards=3, devices=1).root)


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
    with metrics.serve(observer) as port:
        status, kind, text = get(port)
    assert (status, kind) == (200, CONTENT_TYPE_PLAIN_0_0_4)
    assert text == metrics.text(observer.look())


def test_a_folder_is_looked_at_once_for_many_requests(observer):
    """Within the pause between two looks everybody gets the same figures."""
    with metrics.serve(observer, every=1000) as port:
        first = get(port)
        assert [get(port) for _ in range(4)] == [first] * 4
    assert observer.looks == 1


def test_bad_clients_do_not_end_it(observer):
    """After noise, and after clients that leave at once or never say a word, others are served."""
    with metrics.serve(observer) as port:
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
        for noise in (b"\0\xff" * 500, b"GET /metrics HTTP/9.9\r\n", b"GET " + b"x" * 70_000, b""):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(noise)
        assert get(port)[0] == 200
        for client in silent:
            client.close()


def test_a_look_that_fails_is_told_and_does_not_end_it(observer, capfd):
    """A fault in a look is answered with 500 and told, and the next request is served again."""
    with metrics.serve(observer, every=0) as port:
        observer.error = RuntimeError("odd")
        assert get(port)[0] == 500
        observer.error = None
        assert get(port)[0] == 200
    assert "odd" in capfd.readouterr().err


def test_it_listens_on_this_machine_alone_and_ends(observer):
    """It listens on the loopback unless told otherwise; after it nobody listens, nothing runs."""
    before = threading.active_count()
    with metrics.serve(observer) as port:
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
            metrics.serve(observer, host, port),
        ):
            pass
