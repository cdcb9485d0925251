"""Pictures of a page on a phone and on a wide screen, light and dark, for a person to look at."""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.browser.devtools import Browser

WIDTHS = (380, 1600)
SCHEMES = ("light", "dark")
FIRST_LOOK = 760
"""CSS pixels of a page that a reader sees at first."""


def shoot(browser: Browser, page: Path, folder: Path, name: str = "") -> list[Path]:
    """Write the whole page at each width and in each scheme; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for width in WIDTHS:
        for scheme in SCHEMES:
            path = folder / f"{name or page.stem}-{width}-{scheme}.png"
            with browser.page(width, scheme) as tab:
                path.write_bytes(tab.open(page).picture())
            made.append(path)
    return made


def figure(
    browser: Browser, page: Path, path: Path, selector: str = "", width: int = 1000,
    scheme: str = "light",
) -> None:  # fmt: skip
    """Write one part of a page; without a selector, what a window shows before it is scrolled."""
    with browser.page(width, scheme) as tab:
        tab.open(page)
        box = {"x": 0, "y": 0, "width": width, "height": FIRST_LOOK, "scale": 1}
        if selector:
            box |= tab.evaluate(
                f"(() => {{ const b = document.querySelector({selector!r}).getBoundingClientRect();"
                " return {x: Math.max(0, b.left + scrollX - 10), y: b.top + scrollY - 10,"
                " width: b.width + 20, height: b.height + 20}; })()"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tab.picture(clip=box))


def main(words: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.browser.shoot", description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder, Browser(Path(folder)) as browser:
        shoot(browser, options.page, options.folder)


if __name__ == "__main__":
    main()
