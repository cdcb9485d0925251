"""Make the pictures of docs/report.md anew: real runs of the examples, in a real browser."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from matplotlib.image import imsave

from tests.browser.browser import Browser
from tests.workspace import REPO, Workspace

PICTURES = REPO / "docs" / "pictures"
MOST_BYTES = 200_000
FIRST_LOOK = 760
"""Height in CSS pixels of what a reader sees before scrolling."""

# Name of the picture, the run that it shows, the part of its page, the window's width and scheme.
SHOTS = (
    ("first-look", "digits", "", 1000, "light"),
    ("sum", "digits", "result", 1000, "light"),
    ("timeline", "seismic", "time", 1000, "light"),
    ("failed", "bad night", "", 1000, "light"),
    ("failures", "bad night", "failures", 1000, "dark"),
    ("phone", "digits", "", 380, "dark"),
)


def runs(folder: Path) -> dict[str, Path]:
    """Make runs of the examples, and one on a stack with a NaN; returns their pages."""
    examples = Workspace.create(folder / "examples")
    pages = {}
    for name in ("digits", "seismic"):
        shutil.copy2(REPO / "examples" / name / "input.npy", examples.root / "examples" / name)
        examples.succeed("--configfile", f"examples/{name}/config.yaml")
        pages[name] = examples.root / "results" / name / "report.html"
    failed = Workspace.create(folder / "bad night")
    stack = np.random.default_rng(0).standard_normal((600, 256, 256)).astype("float32")
    stack[310, 7, 7] = np.nan
    np.save(failed.root / "stack.npy", stack)
    failed.configure(input="stack.npy", shards=12, dispatch="pool")
    assert failed.run().code != 0
    pages["bad night"] = failed.root / "results" / "default" / "report.html"
    for page in pages.values():
        # The command of a run names this machine's folders; a picture for everybody must not.
        command = page.parent / "logs" / "command.txt"
        command.write_text("cd ~/shardwise && snakemake --profile profiles/local\n")
        words = [sys.executable, REPO / "scripts" / "report.py", f"results/{page.parent.name}"]
        subprocess.run(words, cwd=page.parents[2], check=True, timeout=120)
    return pages


def figure(browser: Browser, page: Path, path: Path, part: str, width: int, scheme: str) -> None:
    """Draw one part of a page; if ``part`` is empty, what a window shows before scrolling."""
    box = [0.0, 0.0, width, FIRST_LOOK]
    if part:
        left, top, wide, high = browser.look(page, width, scheme)["parts"][part]
        box = [max(0.0, left - 10), top - 10, wide + 20, high + 20]
    left, top, wide, high = map(round, box)
    drawn = browser.picture(page, width, top + high, scheme)
    imsave(path, drawn[top : top + high, left : left + wide])
    assert path.stat().st_size <= MOST_BYTES, f"{path} is larger than {MOST_BYTES} bytes"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="shardwise-gallery-") as folder:
        browser = Browser(Path(folder) / "browser")
        pages = runs(Path(folder).resolve())
        for name, run, part, width, scheme in SHOTS:
            figure(browser, pages[run], PICTURES / f"{name}.png", part, width, scheme)
