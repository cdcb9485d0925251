"""The endpoint serves the metrics, whoever asks."""

import socket
import threading
import urllib.request

import pytest
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


def get(port: int) -> str:
    """What a request is answered with."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        return answer.read().decode()


def test_before_the_first_look_there_are_no_figures():
    """The answer is an empty text: nothing is known, and nothing is made up."""
    with metrics.serve(lambda: None) as port:
        assert get(port) == ""


def test_it_listens_on_this_machine_alone_and_ends(observer):
    """It listens on the loopback unless told otherwise; after it nobody listens, nothing runs."""
    before = threading.active_count()
    with metrics.serve(lambda: observer.last) as port:
        assert get(port) == metrics.text(observer.last)
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
