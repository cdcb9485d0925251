"""A real headless browser: one process for each look at a page, controlled by its command line.

It opens no port, writes nothing outside its folder, and resolves no host name.
"""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.image import imread

from tests import debian

# The headless browser needs a third of the libraries; the font has Arabic and Hebrew, too.
PACKAGES = ("chromium-headless-shell", "chromium-common", "fonts-dejavu-core")
PROGRAM = Path("usr/lib/chromium/chromium-headless-shell")

LOOK = Path(__file__).with_name("look.js").read_text()
LIMIT_S = 120

# The sandbox needs rights that a container lacks; we open our own pages only, so none is needed.
_OPTIONS = (
    "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-quic",
    "--disable-background-networking", "--hide-scrollbars", "--force-color-profile=srgb",
    "--font-render-hinting=none", "--host-resolver-rules=MAP * ~NOTFOUND",
    "--enable-logging=stderr",
)  # fmt: skip


class Browser:
    """A browser whose profile and caches lie in a folder."""

    def __init__(self, folder: Path) -> None:
        prefix = debian.unpacked("browser", PACKAGES, _check)
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._program = folder, prefix / PROGRAM
        fonts = folder / "fonts.conf"
        fonts.write_text(
            '<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>'
            f"<dir>{prefix / 'usr/share/fonts'}</dir>"
            f"<cachedir>{folder / 'fonts'}</cachedir></fontconfig>"
        )
        self._environment = {
            "PATH": os.defpath, "HOME": str(folder), "TMPDIR": str(folder), "LANG": "C.UTF-8",
            "TZ": "UTC", "FONTCONFIG_FILE": str(fonts),
            "LD_LIBRARY_PATH": debian.library_path(prefix),
        }  # fmt: skip

    def run(
        self, page: Path, *words: str, width: int = 1200, height: int = 900, scheme: str = "light"
    ) -> str:
        """Open a page in a window of this size in CSS pixels; return what the browser prints.

        Any message in the browser's console is an error; the console also reports everything that
        the page tries to fetch.
        """
        told = (f"--user-data-dir={self._folder / 'profile'}", f"--window-size={width},{height}",
                f"--blink-settings=preferredColorScheme={int(scheme == 'light')}")  # fmt: skip
        done = subprocess.run(
            [self._program, *_OPTIONS, *told, *words, page.resolve().as_uri()],
            env=self._environment, capture_output=True, text=True, timeout=LIMIT_S, check=True,
        )  # fmt: skip
        assert re.findall(r".*:CONSOLE.*", done.stderr) == []
        return done.stdout

    def look(self, page: Path, width: int, scheme: str = "light", paper: bool = False) -> Any:
        """All that ``look.js`` finds in a copy of the page that allows this one script.

        With ``paper`` the copy has the styles of print instead of those of the screen.
        """
        text = re.sub(r"<meta http-equiv[^>]*>", "", page.read_text())
        if paper:
            text = text.replace("@media screen", "@media speech")
            text = text.replace("@media print", "@media screen")
        copy = self._folder / "copy.html"
        copy.write_text(
            f"{text}<script>addEventListener('load', () => {{ const found = {LOOK}\n"
            "document.body.textContent = JSON.stringify(found); })</script>"
        )
        printed = self.run(copy, "--dump-dom", width=width, scheme=scheme)
        body = printed.partition("<body>")[2].rpartition("</body>")[0]
        return json.loads(html.unescape(body))

    def picture(self, page: Path, width: int, height: int, scheme: str = "light") -> np.ndarray:
        """Draw the top of the page in a window of this size: pixels ``(rows, columns, 3)``."""
        file = self._folder / "page.png"
        self.run(page, f"--screenshot={file}", width=width, height=height, scheme=scheme)
        return imread(file)[:, :, :3]


def _check(prefix: Path) -> None:
    """Refuse packages that do not contain the program that the tests drive."""
    if not (prefix / PROGRAM).is_file():
        raise debian.PackagesError(f"{PACKAGES[0]} has no {PROGRAM} on this machine")
