"""The page on a run, in a real browser: what a reader sees, and that it is true.

The runs are pretended, so that they can have GPUs and failures on any machine.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shardwise.observe.observer import Observer
from shardwise.observe.report import page as pages

from tests import pretend
from tests.browser.browser import Browser
from tests.debian import PackagesError, none_here

WIDTHS = (380, 1600)
RUNS: dict[str, dict[str, Any]] = {
    "whole": {"shards": 48, "slow": 2},
    "bad night": {"shards": 40, "failed": 3, "running": 4, "waiting": 5, "damaged": 1,
                  "suspect": 1},
}  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    """A browser that works; if there can be none, skip with the reason, or fail in CI."""
    folder = tmp_path_factory.mktemp("browser")
    page = folder / "empty.html"
    page.write_text("<!doctype html>")
    try:
        found = Browser(folder)
        found.run(page, "--dump-dom")
    except (PackagesError, subprocess.SubprocessError, OSError) as error:
        none_here("browser", error)
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


def checked(
    browser: Browser, path: Path, width: int, scheme: str = "light", paper: bool = False
) -> dict[str, Any]:
    """Assert what must hold at any width, in either scheme and on paper; return what is seen."""
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
    path = made(name).plan.results.report
    for width in WIDTHS:
        found = checked(browser, path, width, scheme)
    assert (sum(found["ground"][:3]) < 1) == (scheme == "dark")


def test_the_sum_is_drawn_and_every_device_has_a_bar(browser, made):
    """On paper the page has both, dark on light, whatever scheme the screen prefers."""
    path = made("whole").plan.results.report
    found = checked(browser, path, 794, "dark", paper=True)
    assert (found["ground"], found["bars"]) == ([1, 1, 1, 1], 4)
    ((_, _, width, height),) = found["drawings"]
    assert min(width, height) > 100
