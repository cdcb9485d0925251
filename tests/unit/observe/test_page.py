"""The page on a run: what it says, that its numbers are the receipts', and that nothing escapes."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from shardwise import units
from shardwise.observe import run_table
from shardwise.observe.advice import Advice
from shardwise.observe.folder import Observer
from shardwise.observe.observation import DeviceOfNode, FailureReason
from shardwise.observe.report import page, plots, tables
from shardwise.records.receipts import Timing
from shardwise.records.timeline import PHASES

from tests import factories, pretend

VOID = {"meta", "link", "br"}
OPTIONAL = {"thead", "tbody", "tr", "th", "td", "li"}


class Page(HTMLParser):
    """What a page holds: bars, links, addresses, figures, texts by section."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.texts: dict[str, str] = {}
        self.unclosed: list[str] = []
        self._open: list[str] = []
        self._section = "top"
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list) -> None:
        """Note a tag; one whose end HTML lets out ends with the next."""
        named = dict(attrs)
        self.tags.append((tag, named))
        if tag == "section":
            self._section = named["id"]
        if tag not in VOID | OPTIONAL:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        """Note a tag that is its own end."""
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """Compare an end with its begin."""
        if tag in OPTIONAL:
            return
        if not self._open or self._open.pop() != tag:
            self.unclosed.append(tag)
        if tag == "section":
            self._section = "top"

    def handle_data(self, data: str) -> None:
        """Collect the text of a section."""
        if self._open and self._open[-1] not in ("style", "script"):
            self.texts[self._section] = self.texts.get(self._section, "") + data

    def section(self, name: str) -> str:
        """The text of a section, on one line."""
        return " ".join(self.texts.get(name, "").split())


def look(made: pretend.Pretended) -> object:
    """What is observed of a pretended run."""
    return Observer(made.root).look(made.at)


def written(made: pretend.Pretended, **more: object) -> str:
    """The page on a pretended run, as text."""
    seen = look(made)
    return page.render(seen, page.read(seen), **more)


def rendered(made: pretend.Pretended, **more: object) -> Page:
    """The page on a pretended run."""
    return Page(written(made, **more))


def titles(text: str) -> dict[str, str]:
    """What is told of each bar of the timeline that is pointed at, by shard."""
    found = re.findall(r"<title>Shard (\w+): ([^<]*)</title>", text)
    return dict(found)


def test_bars_tell_the_numbers_of_the_receipts(tmp_path: Path) -> None:
    """Each shard is one bar, and who points at it reads the seconds of its receipt."""
    made = pretend.run(tmp_path, shards=12, devices=3, slow=1)
    bars = titles(written(made))
    assert set(bars) == set(made.receipts)
    for shard, receipt in made.receipts.items():
        held = receipt["timeline"]["held"]
        told = [f"{name} {units.seconds(held[phase])}" for phase, name in
                zip(PHASES, plots.PHASE_NAMES, strict=True)]  # fmt: skip
        took = units.seconds(receipt["finished"] - receipt["started"])
        assert bars[shard].split("\n") == [took, *told]


def test_questions_are_answered_at_once(tmp_path: Path) -> None:
    """The number in the first line; then failures, time, the slow device, what to change."""
    made = pretend.run(tmp_path, shards=24, devices=3, slow_device=True)
    top = rendered(made, advice=[Advice("Buy disks. They help.", "it halves the time", None)])
    top = " ".join(top.texts["top"].split())
    assert "The sum is right: all 24 shards" in top
    assert "What failed? Nothing." in top
    assert re.search(r"most of it queue and start \(23 h", top)
    assert re.search(r"GPU-0*2: [\d.]+ times as long per matrix", top)
    assert "Buy disks." in top


def test_a_short_run_is_called_neither_slow_nor_advised(tmp_path: Path) -> None:
    """Of seconds, nothing is chance: no red mark, no straggler, no advice, and no word of that."""
    made = pretend.run(tmp_path, shards=8, devices=2, matrices=100, slow=2, slow_device=True)
    text = written(made)
    assert '<li class="bad">' not in text
    assert "Was anything slow" not in text
    assert "took much longer" not in text
    assert 'id="advice"' not in text
    assert "measured" not in text
    assert "--limit)" not in text


def test_total_time_is_where_it_went(tmp_path: Path) -> None:
    """Waiting, copies, shards and reduce: each moment once, and together the whole run."""
    made = pretend.run(tmp_path, shards=8, devices=2, materialize=True)
    seen = look(made)
    begin = seen.plan.facts.made.time
    first = min(own.started for own in seen.shards.values())
    copies = [(begin + 10, begin + 40), (begin + 30, begin + 50), (first - 5, first + 9)]
    spent = {name: part for _, name, part in tables.spent(seen, run_table.of(seen), copies)}
    assert spent["copying shards"] == pytest.approx(45)
    assert spent["reduce"] == pytest.approx(20)
    assert spent["computing shards"] == pytest.approx(run_table.of(seen).seconds, rel=0.1)
    assert sum(spent.values()) == pytest.approx(seen.summary.finished - begin)


def test_results_are_named_with_the_line_that_reads_them(tmp_path: Path) -> None:
    """Paths, sizes, np.load, dispatch, ranks."""
    made = pretend.run(tmp_path, shards=4)
    said = rendered(made).section("run")
    assert f'np.load("{made.plan.results.statistic("sum")}")' in said
    assert str(made.plan.results.ledger) in said
    assert "sum; ranks: 2" in said
    assert "jobs: one job per shard" in said


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
    assert "3 shards failed; 2 shards damaged" in found.section("top")
    said = found.section("failures")
    for shard in made.roles["failed"] + made.roles["damaged"]:
        assert shard in said
    assert made.quarantined[0] in said
    links = [a["href"] for tag, a in found.tags if tag == "a" and not a["href"].startswith("#")]
    assert len(links) >= 2
    assert all(link.startswith("./") and (made.root / link).is_file() for link in links)


def test_stragglers_are_named_with_their_reason(tmp_path: Path) -> None:
    """The shards that took much longer than the median, and the phase that did it."""
    made = pretend.run(tmp_path, shards=20, slow=2)
    said = rendered(made).section("time")
    for shard in made.roles["slow"]:
        assert re.search(rf"{shard} ?NVIDIA H200.*?× the median ?[\w ]+ took", said)


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ({}, False), ({"failed": 1}, True), ({"damaged": 1}, True), ({"unknown": 1}, True),
        ({"running": 1}, False), ({"waiting": 2}, False),
    ],
)  # fmt: skip
def test_work_without_times_is_not_called_idle(
    tmp_path: Path, part: dict[str, int], told: bool
) -> None:
    """Where attempts failed or receipts cannot be used, what is hatched may have been work."""
    seen = look(pretend.run(tmp_path, shards=12, **part))
    shards = {  # pretended runs have second attempts now and then
        shard: replace(own, attempts=min(own.attempts, 1)) for shard, own in seen.shards.items()
    }
    text = page.render(replace(seen, shards=shards))
    assert ("idle, or an attempt that failed" in text) == told


@pytest.mark.parametrize(
    "case", ["empty", "no plan", "cut plan", "waiting", "torn sum", "no times"]
)
def test_any_folder_gives_a_page(tmp_path: Path, case: str) -> None:
    """A folder that is empty, half-done, damaged or of an older version is told of as such."""
    if case in ("empty", "no plan"):
        root = tmp_path / "results"
        (root / "products").mkdir(parents=True)
        if case == "no plan":
            (root / "products" / "00000.json").write_text("{}")
        seen = Observer(root).look()
    else:
        made = pretend.run(tmp_path, shards=4, waiting=4 * (case == "waiting"),
                           old=4 * (case == "no times"))  # fmt: skip
        results = made.plan.results
        if case == "cut plan":
            results.plan.write_bytes(results.plan.read_bytes()[:40])
        if case == "torn sum":
            path = results.statistic("sum")
            path.write_bytes(path.read_bytes()[:-8])
        seen = look(made)
    text = page.render(seen, page.read(seen))
    found = Page(text)
    assert found.unclosed == []
    assert ("The sum is right" in found.section("top")) == (case == "no times")
    if case == "no times":
        assert all("\n" not in told for told in titles(text).values())
        assert "nothing says on what" in found.section("time")
    else:
        assert "<image" not in text


def test_nothing_is_fetched_and_nothing_escapes(tmp_path: Path) -> None:
    """Names that are markup stay text, and no address leads out of the file or the folder."""
    wild = "<script>alert(1)</script>\"'&\x1b[31m\u202e</title>$\\frac$ 计算"
    made = pretend.run(tmp_path, shards=6, failed=1)
    seen = look(made)
    shards = dict(seen.shards)
    for shard, sighting in shards.items():
        shards[shard] = replace(sighting, device=DeviceOfNode(wild, f"GPU-{wild}", wild),
                                telemetry=None)  # fmt: skip
        if sighting.failure:
            shards[shard] = replace(shards[shard], failure=FailureReason(wild, "javascript:alert(1)", None))  # fmt: skip # noqa: E501
    advice = [Advice(wild, wild, wild)]
    seen = replace(
        seen, shards=shards, problems=(wild,), failures={wild: FailureReason(wild, wild, None)}
    )
    text = page.render(seen, advice=advice)
    found = Page(text)
    assert "<script" not in text
    assert "`" not in page.marked("`keep: sum` and `<b>`")
    assert "<b>" not in page.marked("`keep: sum` and `<b>`")
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert found.unclosed == []
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
    drawn = sum(end - begin for begin, end in plots._merged(run, run.shards))
    assert drawn == pytest.approx(busy, rel=0.2)
    monkeypatch.setattr(plots, "_LEAST_GAP", 1.0)
    ((begin, end),) = plots._merged(run, run.shards)
    assert end - begin == pytest.approx(run.seconds)
    text = page.render(look(made))
    assert titles(text) == {}
    assert "too many shards" in text


def test_a_rate_is_never_more_than_was_reached(tmp_path: Path) -> None:
    """Four devices that read one after the other, each a quarter of its time: 4 GB/s, not 16."""
    seen = look(pretend.run(tmp_path, shards=4, devices=4, nodes=1))
    shards = {}
    for own in seen.shards.values():
        held = dict.fromkeys(PHASES, 0.0) | {"read": 2.5, "compute": 7.5}
        told = Timing(held, {**own.timeline.busy, "read": 2.5, "compute": 7.5},
                      {**own.timeline.work, "read": 10e9, "compute": 15e12})  # fmt: skip
        shards[own.shard] = replace(own, started=100.0, finished=110.0, timeline=told)
    run = run_table.of(replace(seen, shards=shards))
    assert run.rate("read", "node01") == pytest.approx(4e9)
    assert run.rate("compute", "node01") == pytest.approx(4 * 15e12 / (4 * 7.5))


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


def test_colours_can_be_told_from_the_page(tmp_path: Path) -> None:
    """Text has a contrast of 4.5 and what is drawn one of 3, in both schemes."""
    style = (Path(page.__file__).parent / "page.css").read_text()
    for block in re.findall(r":root \{([^}]*)\}", style):
        colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6}|#[0-9a-f]{3});", block))
        for ground in ("bg", "soft"):
            for text in ("ink", "dim", "link", "good", "bad", "open"):
                assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
            for drawn in ("p0", "p1", "p2", "p3", "p4", "p5", "unknown", "curve", "limit"):
                assert contrast(colours[drawn], colours[ground]) >= 3, (drawn, ground)


def contrast(one: str, two: str) -> float:
    """The contrast of two colours, by WCAG 2."""
    light, dark = sorted(map(luminance, (one, two)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    """The relative luminance of a colour, by WCAG 2."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * c for c in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_the_page_is_written_by_the_command_line(tmp_path: Path) -> None:
    """The script writes the page and ends with 0, whatever the folder holds; 2 if there is none."""
    made = pretend.run(tmp_path, shards=3, failed=1)
    done = factories.run("report", "--plan", made.plan.results.plan)
    assert done.returncode == 0, done.stderr
    first = made.plan.results.report.read_text()
    assert "1 shard failed" in Page(first).section("top")
    assert made.plan.results.metrics.is_file()
    assert not factories.leftovers(made.root)
    missing = factories.run("report", tmp_path / "nowhere")
    assert missing.returncode == 2
    assert "no such folder" in missing.stderr


def test_a_large_run_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pauses that nobody would see are not drawn, three times as many take no larger page."""
    monkeypatch.setattr(plots, "_LEAST_GAP", 1 / 20)
    monkeypatch.setattr(plots, "MOST_BARS", 100)
    monkeypatch.setattr(tables, "MOST_SHARDS", 100)
    sizes = []
    for shards in (150, 450):
        made = pretend.run(tmp_path / str(shards), shards=shards, matrices=10, summed=False)
        sizes.append(len(page.render(look(made)).encode()))
    assert sizes[1] < 1.1 * sizes[0]
