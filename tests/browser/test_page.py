"""The page on a run, in a real browser: what a reader sees, and that it is true.

Pages are of pretended runs, so they have GPUs, failures and thousands of shards.
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shardwise.observe.folder import Observer
from shardwise.observe.report import page as pages
from shardwise.records import receipts
from shardwise.records.failures import Failure

from tests import pretend
from tests.browser.browser import Browser
from tests.debian import PackagesError

WIDTHS = (380, 1600)
RUNS: dict[str, dict[str, Any]] = {
    "whole": {"shards": 48, "slow": 2},
    "bad night": {"shards": 40, "failed": 3, "lost": 1, "running": 4, "waiting": 5, "damaged": 1,
                  "unknown": 1, "suspect": 1},
    "on a CPU": {"shards": 8, "devices": 0, "nodes": 1},
}  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    """A browser that works; where there can be none, skip with the reason, or fail in CI."""
    folder = tmp_path_factory.mktemp("browser")
    page = folder / "empty.html"
    page.write_text("<!doctype html>")
    try:
        found = Browser(folder)
        found.run(page, "--dump-dom")
    except (PackagesError, subprocess.SubprocessError, OSError) as error:
        refuse = pytest.fail if os.environ.get("CI") else pytest.skip
        refuse(f"no browser here: {error}")
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], pretend.Pretended]:
    """Pretended runs by their names, each with its page; made when first asked for."""
    known: dict[str, pretend.Pretended] = {}

    def make(name: str) -> pretend.Pretended:
        if name not in known:
            folder = tmp_path_factory.mktemp("runs") / name
            known[name] = pretend.run(folder, **RUNS[name])
            pages.write(Observer(known[name].root).look(known[name].at))
        return known[name]

    return make


def page_of(run: pretend.Pretended) -> Path:
    """The file that the browser opens."""
    return run.plan.results.report


def checked(
    browser: Browser, path: Path, width: int, scheme: str = "light", paper: bool = False
) -> dict[str, Any]:
    """What is seen of a page, after what holds at any width, in either scheme, and on paper."""
    found = browser.look(path, width, scheme, paper)
    for kind in ("beyond", "small", "faint"):
        assert found[kind] == [], kind
    assert found["texts"] > 10
    assert found["verdict"].strip()
    return found


@pytest.mark.parametrize(
    ("name", "scheme"), [*((name, "light") for name in RUNS), ("bad night", "dark")]
)
def test_it_can_be_read_on_a_phone_and_on_a_wall(browser, made, name, scheme):
    """Nothing beyond the edge, no small or faint text or legend; light and dark."""
    path = page_of(made(name))
    for width in WIDTHS:
        found = checked(browser, path, width, scheme)
    assert found["cut"] == []  # on a wall every table shows all its columns
    assert (sum(found["ground"][:3]) < 1) == (scheme == "dark")


def test_the_sum_is_drawn_every_device_has_a_bar_and_it_can_be_printed(browser, made):
    """On paper it is dark on light, whatever the screen prefers."""
    path = page_of(made("whole"))
    found = checked(browser, path, 794, "dark", paper=True)
    assert (found["ground"], found["count"]["bars"]) == ([1, 1, 1, 1], 4)
    ((_, _, width, height),) = found["drawings"]
    assert min(width, height) > 100
    assert browser.paper(path).startswith(b"%PDF")


HOSTILE = (
    "<script>document.title='x'</script>\"'><img src=x onerror=alert(1)>\u202eBA\x1b[2J"
    "node-of-a-very-long-name-without-a-space.cluster.university.example"
)


def test_hostile_names_are_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    """Markup, quotes and marks of direction in receipts and logs change nothing but the words."""
    run = pretend.run(tmp_path, shards=6, failed=1, suspect=1)
    results = run.plan.results
    # A receipt whose names hold what no printer prints is refused by the judge; a failure is not.
    name = "".join(letter for letter in HOSTILE if letter.isprintable())
    for shard, receipt in run.receipts.items():
        receipt["device"]["name"] = receipt["node"] = receipt["host"] = name
        run.receipt(shard).write_bytes(receipts._text(receipt))
    (shard, _) = run.roles["failed"]
    trouble = Failure(run.name(shard), 3, HOSTILE, HOSTILE, run.at, HOSTILE)
    pretend.fail(results, trouble.name, trouble)
    pages.write(Observer(run.root).look(run.at))
    path = page_of(run)
    found = checked(browser, path, WIDTHS[0])
    assert found["title"] != "x"
    assert (found["count"]["script"], found["count"]["img"]) == (0, 0)
    for part in ("time", "failures"):
        assert "<script>document.title='x'" in found["parts"][part]["text"], part
