"""The page on a run, in a real browser: what a reader sees, and that it is true.

The runs are pretended, so that they can have GPUs and failures on any machine.
"""

import subprocess
from typing import Any

import pytest
from shardwise.observe import page
from shardwise.observe.status import look

from tests import pretend
from tests.browser.browser import Browser
from tests.debian import PackagesError, none_here

RUNS: dict[str, dict[str, Any]] = {
    "whole": {"shards": 48, "slow": 2},
    "bad night": {"shards": 40, "failed": 3, "running": 4, "waiting": 5, "damaged": 1,
                  "suspect": 1},
}  # fmt: skip
DARK, LIGHT = "rgb(20, 23, 28)", "rgb(255, 255, 255)"


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


@pytest.mark.parametrize("name", RUNS)
def test_it_can_be_read_on_a_phone_on_a_wall_and_on_paper(browser, tmp_path, name):
    """Nothing lies beyond the edge, no text is small; paper is white in a dark room, too.

    The sum is drawn, and every device has a bar.
    """
    made = pretend.run(tmp_path, **RUNS[name])
    path = page.write(look(made.root, made.at))
    for wide, scheme, paper in ((380, "light", False), (1600, "dark", False), (794, "dark", True)):
        found = browser.look(path, wide, scheme, paper)
        assert (found["beyond"], found["small"]) == ([], 0)
        ground, ink = found["colours"]
        assert ground == (DARK if scheme == "dark" and not paper else LIGHT) != ink
        assert found["verdict"].strip()
        assert found["bars"] == 4
        assert len(found["drawings"]) == (name == "whole")
        assert all(min(width, height) > 100 for *_, width, height in found["drawings"])
