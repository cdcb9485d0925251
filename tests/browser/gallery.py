"""Make the pictures of docs/gallery.md anew: real runs of the examples, in a real browser."""

import logging
import shutil
import tempfile
from pathlib import Path

import numpy as np

from tests.browser.devtools import Browser
from tests.browser.shoot import figure
from tests.workspace import REPO, Workspace

PICTURES = REPO / "docs" / "pictures"
MOST_BYTES = 200_000

# Name of the picture, the run that it shows, the part of its page, the window's width and scheme.
SHOTS = (
    ("first-look", "digits", "", 1000, "light"),
    ("sum", "digits", "#heatmap", 1000, "light"),
    ("timeline", "seismic", "#timeline", 1000, "light"),
    ("rates", "seismic", "#rates", 1000, "light"),
    ("durations", "seismic", "#durations", 1000, "light"),
    ("failed", "bad night", "", 1000, "light"),
    ("failures", "bad night", "#failures", 1000, "dark"),
    ("phone", "digits", "", 380, "dark"),
)

log = logging.getLogger("gallery")


def runs(folder: Path) -> dict[str, Path]:
    """Run the examples, and one with a matrix that is not finite; returns their pages."""
    examples = Workspace.create(folder / "examples")
    for name in ("digits", "seismic"):
        shutil.copy2(REPO / "examples" / name / "input.npy", examples.root / "examples" / name)
        done = examples.run("--configfile", f"examples/{name}/config.yaml", timeout=900)
        assert done.code == 0, done.output
    failed = Workspace.create(folder / "failed")
    stack = np.random.default_rng(0).standard_normal((600, 256, 256)).astype("float32")
    stack[310, 7, 7] = np.nan
    np.save(failed.root / "stack.npy", stack)
    failed.configure(input="stack.npy", shards=12, dispatch="pool")
    assert failed.run().code != 0
    return {
        "digits": examples.root / "results" / "digits" / "report.html",
        "seismic": examples.root / "results" / "seismic" / "report.html",
        "bad night": failed.file("report.html"),
    }


def main() -> None:
    """Write all pictures, and say what each weighs."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    PICTURES.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="shardwise-gallery-") as folder,
        Browser(Path(folder) / "browser") as browser,
    ):
        pages = runs(Path(folder))
        for name, run, selector, width, scheme in SHOTS:
            path = PICTURES / f"{name}.png"
            figure(browser, pages[run], path, selector, width, scheme)
            size = path.stat().st_size
            log.info("%s: %d kB", path.relative_to(REPO), size // 1000)
            assert size <= MOST_BYTES, f"{path} is larger than {MOST_BYTES} bytes"


if __name__ == "__main__":
    main()
