"""The fixture `browser`: one real browser for the whole session."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.browser.devtools import Browser, BrowserError
from tests.debian import PackagesError


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Yield a running browser; where there can be none, skip with the reason, or fail in CI."""
    try:
        made = Browser(tmp_path_factory.mktemp("browser"))
        made.call("Browser.getVersion")
    except (PackagesError, BrowserError, OSError) as error:
        refuse = pytest.fail if os.environ.get("CI") else pytest.skip
        refuse(f"no browser here: {error}")
    with made:
        yield made
