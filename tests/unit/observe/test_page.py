"""The page on a run: what it says, that its numbers are the receipts', and that nothing escapes."""

import html
import os
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise import units
from shardwise.observe import run_table
from shardwise.observe.folder import Observer
from shardwise.observe.observation import DeviceOfNode, FailureReason
from shardwise.observe.report import page, plots, tables
from shardwise.records.timeline import PHASES

from tests import factories, pretend


class Page(HTMLParser):
    """What a page holds: tags with their attributes, and the text of each section."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self._text = text
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list) -> None:
        """Note a tag."""
        self.tags.append((tag, dict(attrs)))

    def section(self, name: str) -> str:
        """The text of a section, or of what stands above all of them, on one line."""
        begin = "<body>" if name == "top" else f'<section id="{name}">'
        inside = self._text.partition(begin)[2]
        inside = re.split("<section|</section>", inside)[0]
        return " ".join(html.unescape(re.sub("<[^>]*>", "", inside)).split())


def look(made: pretend.Pretended) -> object:
    """What is observed of a pretended run."""
    return Observer(made.root).look(made.at)


def written(made: pretend.Pretended) -> str:
    """The page on a pretended run, as text."""
    return page.render(look(made))


def rendered(made: pretend.Pretended) -> Page:
    """The page on a pretended run."""
    return Page(written(made))


def titles(text: str) -> dict[str, str]:
    """What is told of each bar of the timeline that is pointed at, by shard."""
    return dict(re.findall(r"<title>Shard (\w+): ([^<]*)</title>", text))


def test_bars_tell_the_numbers_of_the_receipts(tmp_path: Path) -> None:
    """Each shard is one bar, and who points at it reads the seconds of its receipt."""
    made = pretend.run(tmp_path, shards=12, devices=3, slow=1)
    bars = titles(written(made))
    assert set(bars) == set(made.receipts)
    for shard, receipt in made.receipts.items():
        held = receipt["held"]
        told = [f"{name} {units.seconds(held[phase])}" for phase, name in
                zip(PHASES, plots.PHASE_NAMES, strict=True)]  # fmt: skip
        took = units.seconds(receipt["finished"] - receipt["started"])
        assert bars[shard].split("\n") == [took, *told]


def test_the_number_is_answered_for_first(tmp_path: Path) -> None:
    """The verdict is the first line; then results, and how to read them."""
    made = pretend.run(tmp_path, shards=24, devices=3, slow_device=True)
    found = rendered(made)
    said = found.section("run")
    assert f'np.load("{made.plan.results.statistic("sum")}")' in said
    assert str(made.plan.results.ledger) in said
    assert "sum; ranks: 2" in said
    assert "jobs: one job per shard" in said
    assert found.section("top").startswith("The sum is right: all 24 shards")
    assert "Nothing failed." in found.section("failures")
    assert "queue and start 23 h" in found.section("run")
    assert re.search(r"GPU-0*2.*slow", found.section("time"))
    assert re.search(r"the longest, \d+, [\d.]+ s\.", found.section("time"))


def test_in_a_short_run_no_device_is_called_slow(tmp_path: Path) -> None:
    """In seconds it would be chance."""
    made = pretend.run(tmp_path, shards=8, devices=2, matrices=100, slow=2, slow_device=True)
    assert "slow" not in rendered(made).section("time")


def test_total_time_is_where_it_went(tmp_path: Path) -> None:
    """Waiting, copies, shards and reduce: each moment once, and together the whole run."""
    made = pretend.run(tmp_path, shards=8, devices=2, materialize=True)
    seen = look(made)
    begin, run = seen.plan.facts.made.time, run_table.of(seen)
    copies = [(begin - 9, begin + 40), (begin + 30, begin + 50), (run.begin - 5, run.begin + 9)]
    spent = {name: part for _, name, part in tables.spent(seen, run, copies)}
    assert spent["reduce"] == pytest.approx(20)
    assert spent["computing shards"] == pytest.approx(run.seconds, rel=0.1)
    assert spent["copying shards"] == pytest.approx(55)
    assert sum(spent.values()) == pytest.approx(seen.summary.finished - begin)
    assert list(spent) == ["queue and start", "copying shards", "computing shards", "reduce"]


def test_after_a_failure_what_failed_and_the_command_come_first(tmp_path: Path) -> None:
    """Before anything else; without a failure the command stands with the run."""
    command = "cd /a && snakemake --profile 'profiles/<b>'"
    for number, (part, first) in enumerate(
        [({"failed": 1}, True), ({"waiting": 2}, False), ({}, None)]
    ):
        made = pretend.run(tmp_path / str(number), shards=6, **part)
        made.plan.results.command.write_text(f"{command}\n")
        found = rendered(made)
        order = [a["id"] for tag, a in found.tags if tag == "section"]
        assert (order[0] == "failures") == bool(first)
        for name in ("failures", "run"):
            assert (command in found.section(name)) == (name == ("failures" if first else "run"))
        assert ("This command made it" in found.section("run")) == (first is None)


def test_what_failed_is_named_with_its_log(tmp_path: Path) -> None:
    """Shards without a result stand there with a reason and a link that leads to a file."""
    made = pretend.run(
        tmp_path, shards=12, failed=2, lost=1, damaged=1, unknown=1, running=1, quarantined=1
    )
    found = rendered(made)
    said = found.section("failures")
    assert len(re.findall("failed", said)) >= 3
    for shard in made.roles["failed"] + made.roles["damaged"]:
        assert shard in said
    assert made.quarantined[0] in said
    links = [a["href"] for tag, a in found.tags if tag == "a" and not a["href"].startswith("#")]
    assert len(links) >= 2
    assert all(link.startswith("./") and (made.root / link).is_file() for link in links)


@pytest.mark.parametrize(
    ("waiting", "harm"),
    [
        (0, lambda results: shutil.rmtree(results.root)),
        (0, lambda results: results.plan_facts.unlink()),
        (0, lambda results: os.truncate(results.plan, 40)),
        (4, lambda results: None),
        (0, lambda results: os.truncate(results.statistic("sum"), 5000)),
    ],
)
def test_any_folder_gives_a_page(tmp_path: Path, waiting: int, harm: Any) -> None:
    """A folder that is empty, half-done or damaged is told of as such."""
    made = pretend.run(tmp_path, shards=4, waiting=waiting)
    harm(made.plan.results)
    text = written(made)
    assert "The sum is right" not in Page(text).section("top")
    assert "<image" not in text


def test_nothing_is_fetched_and_nothing_escapes(tmp_path: Path) -> None:
    """Names that are markup stay text, and no address leads out of the file or the folder."""
    wild = "<script>alert(1)</script>\"'&\x1b[31m\u202e</title>$\\frac$ 计算"
    made = pretend.run(tmp_path, shards=6, failed=1)
    seen = look(made)
    shards = dict(seen.shards)
    for shard, sighting in shards.items():
        shards[shard] = replace(sighting, device=DeviceOfNode(wild, f"GPU-{wild}", wild))
        if sighting.failure:
            shards[shard] = replace(shards[shard], failure=FailureReason(wild, "javascript:alert(1)", None))  # fmt: skip # noqa: E501
    seen = replace(
        seen, shards=shards, problems=(wild,), failures={wild: FailureReason(wild, wild, None)}
    )
    text = page.render(seen)
    found = Page(text)
    assert "<script" not in text
    assert "`" not in page.marked("`keep: sum` and `<b>`")
    assert "<b>" not in page.marked("`keep: sum` and `<b>`")
    assert "\x1b" not in text
    assert "\u202e" not in text
    for tag, attributes in found.tags:
        assert not {"src", "href", "action", "data", "srcset"} & set(attributes) or (
            attributes.get("href", attributes.get("src", "")).startswith(("#", "./", "data:"))
        ), (tag, attributes)
    assert "default-src 'none'" in text
    assert "script-src" not in text
    own = text.split("<body>")[0]
    assert not re.search(r"url\(|@import|https?:|fetch\(|XMLHttp|import\(|WebSocket", own)


def test_of_many_shards_a_row_shows_when_the_device_had_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bar with no title for what cannot be told apart, and the page says so."""
    monkeypatch.setattr(plots, "MOST_BARS", 20)
    made = pretend.run(tmp_path, shards=60, devices=1, nodes=1, matrices=10)
    run = run_table.of(look(made))
    busy = float(run.devices.busy.iloc[0])
    assert np.diff(plots._merged(run, run.shards)).sum() == pytest.approx(busy, rel=0.2)
    monkeypatch.setattr(plots, "_LEAST_GAP", 1.0)
    ((begin, end),) = plots._merged(run, run.shards)
    assert end - begin == pytest.approx(run.seconds)
    text = page.render(look(made))
    assert titles(text) == {}
    assert "too many shards" in text


def test_the_page_on_a_large_run_stays_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where pauses that nobody would see are not drawn, three times as many take no larger page."""
    monkeypatch.setattr(plots, "_LEAST_GAP", 1 / 20)
    monkeypatch.setattr(plots, "MOST_BARS", 50)
    monkeypatch.setattr(tables, "MOST_ROWS", 50)
    sizes = []
    for shards in (70, 210):
        made = pretend.run(tmp_path / str(shards), shards=shards, matrices=10, summed=False)
        sizes.append(len(page.render(look(made)).encode()))
    assert sizes[1] < 1.1 * sizes[0]


def test_a_break_between_runs_is_left_out(tmp_path: Path) -> None:
    """A night in which nothing ran takes no place, and counts as nobody's idleness."""
    seen = look(pretend.run(tmp_path, shards=8, devices=1, nodes=1))
    shards = dict(seen.shards)
    for shard in list(shards)[4:]:
        own = shards[shard]
        shards[shard] = replace(own, started=own.started + 40_000, finished=own.finished + 40_000)
    run = run_table.of(replace(seen, shards=shards))
    assert len(run.stretches) == 2
    assert run.seconds < 20_000
    (_, end), (begin, last) = run.stretches
    assert plots.worked(run, [run.begin, end, begin, last]) == pytest.approx(
        [0, end - run.begin, end - run.begin, run.seconds]
    )
    assert "breaks between runs" in page.render(replace(seen, shards=shards))


def test_the_page_is_written_by_the_command_line(tmp_path: Path) -> None:
    """The script writes the page and ends with 0, whatever the run left; 2 if there was none."""
    made = pretend.run(tmp_path, shards=3, failed=1)
    done = factories.run("report", made.root)
    assert done.returncode == 0, done.stderr
    first = made.plan.results.report.read_text()
    assert "make verify" in first
    assert factories.run("report", made.root, cwd=tmp_path).returncode == 0
    elsewhere = made.plan.results.report.read_text()
    assert "shardwise verify" in elsewhere
    assert "make verify" not in elsewhere
    assert "1 failed" in Page(first).section("top")
    assert made.plan.results.metrics.is_file()
    assert not factories.leftovers(made.root)
    missing = factories.run("report", tmp_path / "nowhere")
    assert missing.returncode == 2
    assert "no such folder" in missing.stderr
    own = tmp_path / "thesis"
    own.mkdir()
    (own / "report.html").write_text("mine")
    refused = factories.run("report", own)
    assert refused.returncode == 2
    assert "no run made this folder" in refused.stderr
    assert [path.read_text() for path in own.iterdir()] == ["mine"]


@given(st.text(), st.text(), st.text())
def test_devices_of_any_name_are_one_line(name: str, uuid: str, node: str) -> None:
    """What would steer a terminal, or turn the order of letters, is written out."""
    assert units.plain(DeviceOfNode(name, uuid, node).label).isprintable()


@given(st.text(min_size=1))
def test_links_stay_below_the_folder_of_the_page(path: str) -> None:
    """No name of a file makes an address of another kind."""
    address = tables.link(path).partition('href="')[2].partition('"')[0]
    assert address.startswith("./")
    assert ":" not in address
