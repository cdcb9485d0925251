"""A real Prometheus out of Debian's or Ubuntu's own package, on a free port of this machine."""

import contextlib
import json
import os
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import debian, factories, processes

PREFIX_NAME = "prefix-1"
RULES = factories.ROOT / "docs" / "monitoring" / "alerts.yml"
SECONDS = 60
"""How long anything may take that takes a moment on a machine with nothing else to do."""


def ensure() -> Path:
    """The folder of the programs, unpacked by the first call; without them: skip, or fail in CI."""
    try:
        prefix = debian.unpacked(
            debian.CACHE / "prometheus", PREFIX_NAME, ("prometheus",), lambda _: None
        )
    except debian.PackagesError as error:
        refuse = pytest.fail if os.environ.get("CI") else pytest.skip
        refuse(f"no Prometheus: {error}")
    return prefix / "usr" / "bin"


def promtool(*words: str | Path, given: str = "") -> subprocess.CompletedProcess:
    """Run promtool."""
    return subprocess.run(
        [ensure() / "promtool", *words], input=given, capture_output=True, text=True, check=False
    )


class Prometheus:
    """One that runs, and answers queries."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/"

    def ask(self, path: str, **words: str) -> Any:
        """What the API says to a request."""
        query = urllib.parse.urlencode(words)
        with urllib.request.urlopen(f"{self._url}{path}?{query}", timeout=SECONDS) as answer:
            told = json.load(answer)
        assert told["status"] == "success", told
        return told["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The series of an instant query."""
        return self.ask("query", query=expr)["result"]

    def alerts(self) -> set[str]:
        """The names of alerts that fire, or are about to."""
        return {alert["labels"]["alertname"] for alert in self.ask("alerts")["alerts"]}


def wait(until: Callable[[], Any]) -> None:
    """Until a question is answered with something."""

    def answered() -> Any:
        with contextlib.suppress(OSError):
            return until()

    processes.until(answered, SECONDS)


@contextlib.contextmanager
def scraping(folder: Path, port: int) -> Iterator[Prometheus]:
    """A Prometheus that scrapes a port of this machine twice a second, by our rules.

    Parameters
    ----------
    folder
        An empty one, for its data.
    """
    programs = ensure()
    config = {
        "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {"job_name": "shardwise", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # all JSON is YAML
    own = _free_port()
    command = [
        programs / "prometheus", f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{own}",
    ]  # fmt: skip
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        server = Prometheus(own)
        wait(lambda: server.query("up == 1"))
        yield server
    finally:
        process.terminate()
        process.wait(SECONDS)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]
