"""A browser out of Debian's own packages."""

from __future__ import annotations

from pathlib import Path

from tests import debian

# The browser without windows needs a third of the libraries; the font has Arabic and Hebrew, too.
PACKAGES = ("chromium-headless-shell", "chromium-common", "fonts-dejavu-core")

# Raise the number when what is unpacked changes: folders of earlier recipes are then left aside.
PREFIX_NAME = "prefix-1"

PROGRAM = Path("usr/lib/chromium/chromium-headless-shell")


def ensure(folder: Path = debian.CACHE / "browser") -> Path:
    """Return a folder holding the browser, unpacked into `folder` by the first call."""
    return debian.unpacked(folder, PREFIX_NAME, PACKAGES, _check)


def _check(prefix: Path) -> None:
    """Refuse packages that hold another browser than the one that the tests drive."""
    if not (prefix / PROGRAM).is_file():
        raise debian.PackagesError(f"{PACKAGES[0]} has no {PROGRAM} on this machine")
