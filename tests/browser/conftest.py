"""The fixture `browser`: a real browser for the whole session."""

import os
import subprocess

import pytest

from tests.browser.browser import Browser
from tests.debian import PackagesError


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    """A browser that works; where there can be none, skip with the reason, or fail in CI."""
    folder = tmp_path_factory.mktemp("browser")
    page = folder / "empty.html"
    page.write_text("<!doctype html>")
    try:
        made = Browser(folder)
        made.run(page, "--dump-dom")
    except (PackagesError, subprocess.SubprocessError, OSError) as error:
        refuse = pytest.fail if os.environ.get("CI") else pytest.skip
        refuse(f"no browser here: {error}")
    return made
