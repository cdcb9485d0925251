"""The page on a run, in a real browser: what a reader sees, and that it is true.

Pages are of pretended runs, so they have GPUs, failures and thousands of shards.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shardwise.observe.folder import Observer
from shardwise.observe.report import page as pages
from shardwise.records import receipts

from tests import pretend
from tests.browser.devtools import Browser, Page
from tests.browser.looks import ink, look, nameless

WIDTHS = (380, 1600)
RUNS: dict[str, dict[str, Any]] = {
    "whole": {"shards": 48, "slow": 2, "slow_device": True},
    "bad night": {"shards": 40, "failed": 3, "lost": 1, "running": 4, "waiting": 5, "damaged": 1,
                  "unknown": 1, "old": 3, "quarantined": 1},
    "on a CPU": {"shards": 8, "devices": 0, "nodes": 1, "old": 8},
}  # fmt: skip


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


def page_of(run: pretend.Pretended) -> Path:
    """The file that the browser opens."""
    return run.plan.results.report


def check(page: Page, found: dict[str, Any], path: Path) -> None:
    """What holds for every page at any width, in either scheme and on paper."""
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith("data:")] == [path.as_uri()]
    assert found["wide"] <= 0, f"it is {found['wide']} px wider than the window"
    assert found["beyond"] == []
    assert found["small"] == []
    assert found["faint"] == []
    assert found["dim"] == []
    assert found["texts"] > 15
    assert found["verdict"].strip()


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_on_a_phone_and_on_a_wall(browser, made, name, scheme):
    """No sideways scrolling, no small or faint text, nothing fetched, no complaint; light, dark."""
    path = page_of(made(name))
    with browser.page(WIDTHS[0], scheme) as page:
        page.open(path)
        for width in WIDTHS:
            found = look(page.resize(width))
            check(page, found, path)
        assert found["cut"] == []  # on a wall every table that is open shows all its columns
        assert (sum(found["ground"][:3]) < 1) == (scheme == "dark")


@pytest.mark.parametrize("name", RUNS)
def test_every_figure_is_drawn_and_has_words(browser, made, name):
    """Each has a box, ink in it, and a caption; every picture has alternative text."""
    with browser.page(WIDTHS[1]) as page:
        found = look(page.open(page_of(made(name))))
        figures = {figure["id"]: figure for figure in found["figures"]}
        assert {"timeline", "durations"} <= set(figures)
        for key, figure in figures.items():
            assert min(figure["box"][2:]) > 50, key
            assert figure["drawings"], key
            assert len(figure["caption"]) > 20, key
        assert nameless(page) == []
        boxes = [(key, box) for key, figure in figures.items() for box in figure["drawings"]]
        assert all(min(box[2:]) > 0 for _, box in boxes)
        amounts = ink(page, [box for _, box in boxes])
    for (key, _), (colours, share) in zip(boxes, amounts, strict=True):
        assert colours > 1, key
        assert share > 0.001, key


def test_it_can_be_printed(browser: Browser, made: Callable[[str], pretend.Pretended]) -> None:
    """On paper it is dark on light, whatever the screen prefers."""
    path = page_of(made("whole"))
    with browser.page(794, "dark") as page:
        page.open(path).show("dark", "print")
        found = look(page)
        check(page, found, path)
        assert found["ground"] == [1, 1, 1, 1]
        assert page.paper().startswith(b"%PDF")


HOSTILE = (
    "<script>document.title='x'</script>\"'><img src=x onerror=alert(1)>\u202eBA\x1b[2J"
    "node-of-a-very-long-name-without-a-space.cluster.university.example"
)


def test_hostile_names_are_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    """Markup, quotes and marks of direction in receipts and logs change nothing but the words."""
    run = pretend.run(tmp_path, shards=6, failed=1, quarantined=1)
    results = run.plan.results
    # A receipt whose names hold what no printer prints is refused by the judge; a log may hold it.
    name = "".join(letter for letter in HOSTILE if letter.isprintable())
    for shard, receipt in run.receipts.items():
        receipt["device"]["name"] = receipt["node"] = receipt["host"] = name
        results.receipt(shard).write_bytes(receipts._text(receipt))
    (shard,) = run.roles["failed"]
    log = results.log("multiply", shard)
    log.write_text(f"2026-01-02 03:04:05,678 ERROR {HOSTILE}\n")
    pages.write(Observer(run.root).look(run.at))
    path = page_of(run)
    with browser.page(WIDTHS[0]) as page:
        found = look(page.open(path))
        check(page, found, path)
        assert page.evaluate("document.title") != "x"
        assert page.evaluate("document.querySelectorAll('script').length") == 0
        assert page.evaluate("document.querySelectorAll('img').length") == 0
        for part in ("#timeline", "#devices", "#failures"):
            words = page.evaluate(f"document.querySelector({part!r}).textContent")
            assert "<script>document.title='x'" in words, part


def _empty(folder: Path) -> Path:
    (folder / "results").mkdir(parents=True)
    return folder / "results"


def _only_planned(folder: Path) -> Path:
    return pretend.run(folder, shards=5, waiting=5).root


def _no_plan(folder: Path) -> Path:
    root = pretend.run(folder, shards=5).root
    (root / "plan.json").write_text("{")
    return root


def _cut_short(folder: Path) -> Path:
    run = pretend.run(folder, shards=5)
    results = run.plan.results
    for path in (results.summary, results.ledger, results.statistic("sum")):
        path.write_bytes(path.read_bytes()[:50])
    results.receipt("00002").write_text("[]")
    return run.root


@pytest.mark.parametrize("damage", [_empty, _only_planned, _no_plan, _cut_short])
def test_a_folder_that_is_not_whole_has_a_page_that_says_so(browser, tmp_path, damage):
    """Empty, only planned, without a plan, cut short: the first line is not that of a proof."""
    root = damage(tmp_path / "run")
    pages.write(Observer(root).look())
    path = root / "report.html"
    with browser.page(WIDTHS[0]) as page:
        found = look(page.open(path))
        check(page, found, path)
    assert "is right" not in found["verdict"]
    assert found["verdict"].strip()[-1] in ".!?"


def test_ten_thousand_shards_fit_into_five_megabytes(browser: Browser, tmp_path: Path) -> None:
    """And all of their time is drawn; how fast it opens, benchmarks/page.py measures."""
    run = pretend.run(tmp_path, shards=10_000, devices=16, nodes=4, summed=False)
    pages.write(Observer(run.root).look(run.at))
    path = page_of(run)
    assert path.stat().st_size < 5_000_000
    with browser.page(WIDTHS[1]) as page:
        assert page.open(path).complaints == []
        drawn = page.evaluate(
            "document.querySelectorAll('#timeline path').length "
            "/ document.querySelectorAll('#timeline svg').length"
        )
        assert math.isfinite(drawn)
        assert drawn >= 2
