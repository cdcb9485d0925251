"""The page on a run as its shards grow: its size, how long it takes to make, and to open.

Its figures stand in docs/dependencies.md. Runs are pretended, nothing is computed. A page is opened
as often as --rounds says, in a real browser out of Debian's packages; the load event ends each.
"""

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import harness

sys.path.insert(0, str(harness.REPO))

SHARDS = (10, 100, 1_000, 10_000)


def main() -> None:
    """Print the table."""
    from shardwise.observe.folder import Observer
    from shardwise.observe.report import page as pages

    from tests import pretend
    from tests.browser.devtools import Browser

    parser = harness.parser(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often each page is opened")
    options = parser.parse_args()
    columns = ["shards", "devices", "MB", "made in s", "opens in s", "slowest s"]
    table = harness.Table("page", columns, options.json)
    folder = Path(tempfile.mkdtemp(prefix="shardwise-page-"))
    try:
        with Browser(folder / "browser") as browser:
            for shards in SHARDS[:1] if options.tiny else SHARDS:
                devices = min(16, shards)
                run = pretend.run(folder / str(shards), shards=shards, devices=devices, nodes=4)
                begin = time.monotonic()
                pages.write(Observer(run.root).look(run.at))
                seconds = time.monotonic() - begin
                path = run.plan.results.report
                opened = []
                for _ in range(options.rounds):
                    with browser.page(1600) as page:
                        opened.append(page.open(path).load_seconds())
                size = path.stat().st_size
                table.row(
                    [shards, devices, size / 1e6, seconds, statistics.median(opened), max(opened)],
                    {"bytes": size, "made": seconds, "opened": opened},
                )
    finally:
        shutil.rmtree(folder)
    table.end()


if __name__ == "__main__":
    main()
