"""The page on a run: what it says, that its numbers are the receipts', and that nothing escapes."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from shardwise.observe.advice import Advice
from shardwise.observe.folder import Observer
from shardwise.observe.observation import Device, Failure
from shardwise.observe.report import page, rates, timeline, words, work
from shardwise.records.timeline import PHASES

from tests import factories, pretend

VOID = {"meta", "link", "img", "br", "input"}
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

    def bars(self) -> dict[str, dict]:
        """The bars of the timeline, by shard."""
        return {a["data-shard"]: a for tag, a in self.tags if tag == "g" and "data-shard" in a}

    def section(self, name: str) -> str:
        """The text of a section, on one line."""
        return " ".join(self.texts.get(name, "").split())


def look(made: pretend.Pretended) -> object:
    """What is observed of a pretended run."""
    return Observer(made.root).look(made.at)


def rendered(made: pretend.Pretended, **more: object) -> Page:
    """The page on a pretended run."""
    seen = look(made)
    total, why = page.picture(seen)
    return Page(page.render(seen, total=total, total_words=why, **more))


def test_bars_have_the_numbers_of_the_receipts(tmp_path: Path) -> None:
    """Each shard is one bar, whose phases are those of its receipt to the last digit."""
    made = pretend.run(tmp_path, shards=12, devices=3, slow=1)
    bars = rendered(made).bars()
    assert set(bars) == set(made.receipts)
    for shard, receipt in made.receipts.items():
        held = [float(text) for text in bars[shard]["data-held"].split()]
        assert held == [receipt["timeline"]["held"][phase] for phase in PHASES]


def test_segments_of_a_bar_are_as_wide_as_their_phases(tmp_path: Path) -> None:
    """The widths that are drawn are in the ratio of the seconds."""
    made = pretend.run(tmp_path, shards=3, devices=1, nodes=1)
    text = page.render(look(made))
    for shard, receipt in made.receipts.items():
        group = re.search(rf'data-shard="{shard}"[^>]*>(.*?)</g>', text)[1]
        drawn = {
            int(p): float(w) for p, w in re.findall(r"class=p(\d) d=\"M[^h]*h([\d.]+)v", group)
        }
        held = receipt["timeline"]["held"]
        scale = sum(drawn.values()) / sum(held.values())
        for number, phase in enumerate(PHASES):
            assert drawn.get(number, 0) == pytest.approx(held[phase] * scale, abs=0.005)


def test_first_line_is_the_verdict(tmp_path: Path) -> None:
    """What is observed of the whole run stands before anything else."""
    text = page.render(look(pretend.run(tmp_path, shards=4)))
    first = re.search(r"<body>\s*<header[^>]*>\s*<p[^>]*>([^<]*)", text)[1]
    assert first.startswith("The sum is right")


def test_five_questions_are_answered_at_once(tmp_path: Path) -> None:
    """The right number, the time, the slow device, what failed, what to change: by name."""
    made = pretend.run(tmp_path, shards=24, devices=3, slow_device=True)
    advice = [Advice("Use keep: sum", "it halves the bytes", None)]
    top = rendered(made, advice=advice).section("top")
    assert "Yes, it is proven" in top
    assert re.search(r"(Read|Write|Compute|Idle) \d+ %", top)
    assert re.search(r"GPU-0*2: \d+ % of the rate", top)
    assert "Nothing in the end" in top
    assert "Use keep: sum" in top


def test_what_failed_is_named_with_its_log(tmp_path: Path) -> None:
    """Shards without a result stand there with a reason and a link that leads to a file."""
    made = pretend.run(
        tmp_path, shards=12, failed=2, lost=1, damaged=1, unknown=1, running=1, quarantined=1
    )
    found = rendered(made)
    assert re.search(r"shards failed \(the first: (device|no word)", found.section("top"))
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
    said = rendered(made).section("shards")
    for shard in made.roles["slow"]:
        assert re.search(rf"{shard} on NVIDIA H200.*?times the median. \w+ took", said)


def test_each_stage_has_its_rate(tmp_path: Path) -> None:
    """The rate of each stage on each node stands beside the share of the time it was at work."""
    made = pretend.run(tmp_path, shards=8, devices=2, nodes=2)
    said = rendered(made).section("time")
    for node in {receipt["node"] for receipt in made.receipts.values()}:
        assert re.search(rf"{node}: read ?[\d.]+ GB/s ?\d+ %", said), said
    assert rates.NO_LINK not in said


def test_a_cpu_has_no_link_to_a_device(tmp_path: Path) -> None:
    """Upload and download are copies in memory there, and say so, in the bars and in the table."""
    said = rendered(pretend.run(tmp_path, shards=4, devices=0, nodes=1)).section("time")
    assert said.count(f"({rates.NO_LINK})") == 2 + 2


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
    assert ("leave no times" in text) == told
    assert ("idle or not known" in text) == told


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
    total, why = page.picture(seen)
    found = Page(page.render(seen, total=total, total_words=why))
    assert found.unclosed == []
    assert ("Yes, it is proven" in found.section("top")) == (case == "no times")
    if case == "no times":
        assert all(bar["data-held"] == "" for bar in found.bars().values())
        assert "The receipts do not say" in found.section("top")
    else:
        assert not any(tag == "img" for tag, _ in found.tags)


def test_nothing_is_fetched_and_nothing_escapes(tmp_path: Path) -> None:
    """Names that are markup stay text, and no address leads out of the file or the folder."""
    wild = "<script>alert(1)</script>\"'&\x1b[31m\u202e</title>"
    made = pretend.run(tmp_path, shards=6, failed=1)
    seen = look(made)
    shards = dict(seen.shards)
    for shard, sighting in shards.items():
        shards[shard] = replace(sighting, device=Device(wild, f"GPU-{wild}", wild),
                                telemetry={"throttled_seconds": {wild: 3.0}})  # fmt: skip
        if sighting.failure:
            shards[shard] = replace(shards[shard], failure=Failure(wild, "javascript:alert(1)", None))  # fmt: skip # noqa: E501
    advice = [Advice(wild, wild, wild)]
    seen = replace(
        seen, shards=shards, problems=(wild,), failures={wild: Failure(wild, wild, None)}
    )
    text = page.render(seen, advice)
    found = Page(text)
    assert text.count("<script>") == 1
    assert "`" not in words.marked("`keep: sum` and `<b>`")
    assert "<b>" not in words.marked("`keep: sum` and `<b>`")
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert found.unclosed == []
    for tag, attributes in found.tags:
        assert not {"src", "href", "action", "data", "srcset"} & set(attributes) or (
            attributes.get("href", attributes.get("src", "")).startswith(("#", "./", "data:"))
        ), (tag, attributes)
    assert "default-src 'none'" in text
    own = text.split("<body>")[0] + text.split("<script>")[1]
    assert not re.search(r"url\(|@import|https?:|fetch\(|XMLHttp|import\(|WebSocket", own)


@pytest.mark.parametrize("bad", [float("nan"), -1.0, "3", None, 10**400, True, [1]])
def test_wild_numbers_of_a_receipt_are_passed_over(tmp_path: Path, bad: object) -> None:
    """A timeline or telemetry of foreign values costs its bar the colours, and nothing else."""
    made = pretend.run(tmp_path, shards=4)
    seen = look(made)
    shards = dict(seen.shards)
    own = shards["00002"]
    times = replace(own.timeline, held={**own.timeline.held, "read": bad},
                    busy={"read": bad}, work={"read": bad})  # fmt: skip
    shards["00002"] = replace(own, timeline=times, telemetry={
        "energy_joules": bad, "seconds": bad, "utilisation": bad, "power_watts": {"mean": bad},
        "throttled_seconds": {"x": bad}, "ecc_corrected": bad,
    })  # fmt: skip
    bars = Page(page.render(replace(seen, shards=shards))).bars()
    assert bars["00002"]["data-held"] == ""
    assert all(bar["data-held"] for shard, bar in bars.items() if shard != "00002")


def test_every_picture_has_words(tmp_path: Path) -> None:
    """Each picture says in text what it shows, and each figure has a caption and a table."""
    made = pretend.run(tmp_path, shards=8)
    seen = look(made)
    total, why = page.picture(seen)
    text = page.render(seen, total=total, total_words=why)
    found = Page(text)
    ids = {a["id"] for _, a in found.tags if "id" in a}
    pictures = [a for tag, a in found.tags if a.get("role") == "img"]
    assert len(pictures) >= 6
    for attributes in pictures:
        named = attributes.get("aria-labelledby", "").split()
        assert attributes.get("aria-label") or (named and set(named) <= ids)
    assert all(a.get("alt") for tag, a in found.tags if tag == "img")
    figures = text.count("<figure")
    assert figures == text.count("<figcaption>") == 5
    assert text.count("<details>") == figures


def test_many_shards_are_merged_without_losing_area(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns of a device hold as much of each phase as its bars would."""
    monkeypatch.setattr(timeline, "MOST_BARS_OF_A_DEVICE", 20)
    made = pretend.run(tmp_path, shards=60, devices=1, nodes=1, matrices=10)
    run = work.of(look(made))
    (device,) = run.devices
    axis = timeline.Axis(run.stretches)
    columns = timeline._shares(device, axis, 50)
    for number, phase in enumerate(PHASES):
        area = sum(column[number] for column in columns) * 1000 / 50 / axis.scale
        assert area == pytest.approx(device.held[phase], rel=1e-3, abs=1e-3)
    text = page.render(look(made))
    assert Page(text).bars() == {}
    assert "too many shards" in text


def test_shards_at_once_do_not_make_later_ones_look_idle(tmp_path: Path) -> None:
    """A column is as high as the share of its time in which the device had any shard."""
    seen = look(pretend.run(tmp_path, shards=40, devices=1, nodes=1, matrices=10))
    at_once = list(seen.shards.values())[:20]
    begin, step = at_once[0].started, at_once[0].seconds
    shards = {
        own.shard: replace(
            own,
            started=begin + max(0, i - 19) * step,
            finished=begin + (max(0, i - 19) + 1) * step,
        )
        for i, own in enumerate(seen.shards.values())
    }
    run = work.of(replace(seen, shards=shards))
    (device,) = run.devices
    columns = timeline._shares(device, timeline.Axis(run.stretches), 24)
    assert [sum(column) for column in columns] == pytest.approx([1.0] * 24)


def test_the_script_names_the_phases_as_receipts_do() -> None:
    """It shows the numbers of a bar by their place."""
    script = Path(page.__file__).with_name("page.js").read_text()
    (listed,) = re.findall(r"const phases = \[(.*?)\]", script)
    assert tuple(re.findall(r'"(\w+)"', listed)) == PHASES


def test_many_breaks_leave_room_for_the_shards() -> None:
    """A hundred short jobs in a busy queue: all are drawn, and no label lies on another."""
    axis = timeline.Axis([(3600.0 * i, 3600.0 * i + 10) for i in range(100)])
    assert axis.x(3600.0 * 99 + 10) == pytest.approx(1000)
    assert 10 * 100 * axis.scale == pytest.approx(500)
    places = [place for place, _ in axis.ticks()]
    assert len(places) > 2
    assert min(b - a for a, b in pairwise(places)) > 0.1


def test_a_rate_is_never_more_than_was_reached(tmp_path: Path) -> None:
    """Four devices that read one after the other, each a quarter of its time: 4 GB/s, not 16."""
    seen = look(pretend.run(tmp_path, shards=4, devices=4, nodes=1))
    shards = {}
    for own in seen.shards.values():
        held = dict.fromkeys(PHASES, 0.0) | {"read": 2.5, "compute": 7.5}
        told = replace(
            own.timeline, held=held, busy={**own.timeline.busy, "read": 2.5, "compute": 7.5},
            work={**own.timeline.work, "read": 10e9, "compute": 15e12},
        )  # fmt: skip
        shards[own.shard] = replace(own, started=100.0, finished=110.0, timeline=told)
    found = rates.speeds(work.of(replace(seen, shards=shards)))
    speed = {own.stage: own.rate for own in found}
    assert speed["read"] == pytest.approx(4e9)
    assert speed["compute"] == pytest.approx(4 * 15e12 / (4 * 7.5))


def test_a_break_between_runs_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A night in which nothing ran takes a narrow place, and counts as nobody's idleness."""
    seen = look(pretend.run(tmp_path, shards=8, devices=1, nodes=1))
    shards = dict(seen.shards)
    for shard in list(shards)[4:]:
        own = shards[shard]
        shards[shard] = replace(own, started=own.started + 40_000, finished=own.finished + 40_000)
    run = work.of(replace(seen, shards=shards))
    assert len(run.stretches) == 2
    assert run.seconds < 20_000
    axis = timeline.Axis(run.stretches)
    assert axis.x(run.stretches[0][0]) == 0
    assert axis.x(run.stretches[1][1]) == pytest.approx(1000)
    text = page.render(replace(seen, shards=shards))
    assert "Breaks between runs" in text
    (drawn,) = re.findall(r'class=break d="(.*?)"', text)
    monkeypatch.setattr(timeline, "MOST_BARS", 4)
    (merged,) = re.findall(r'class=break d="(.*?)"', page.render(replace(seen, shards=shards)))
    assert drawn == merged


def test_shards_that_overlap_have_lanes(tmp_path: Path) -> None:
    """Two shards of one device at once are drawn below each other, and its time counts once."""
    seen = look(pretend.run(tmp_path, shards=2, devices=1, nodes=1))
    one, two = seen.shards.values()
    two = replace(two, started=one.started + 0.25 * one.seconds)
    run = work.of(replace(seen, shards={one.shard: one, two.shard: two}))
    (device,) = run.devices
    assert sorted(bar.lane for bar in device.bars) == [0, 1]
    assert len(device.busy) == 1
    shares = timeline.time_shares(run)
    assert sum(shares.values()) == pytest.approx(1)


def test_colours_can_be_told_from_the_page(tmp_path: Path) -> None:
    """Text has a contrast of 4.5 and what is drawn one of 3, in both schemes."""
    style = (Path(page.__file__).parent / "page.css").read_text()
    for block in re.findall(r":root \{([^}]*)\}", style):
        colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6}|#[0-9a-f]{3});", block))
        for ground in ("bg", "soft"):
            for text in ("ink", "dim", "link", "good", "bad", "open"):
                assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
            for drawn in ("p0", "p1", "p2", "p3", "p4", "p5", "unknown", "idle", "curve", "second"):
                assert contrast(colours[drawn], colours[ground]) >= 3, (drawn, ground)
        assert contrast(colours["idle"], colours["idleback"]) >= 3


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
    """Where bars are merged, a shard takes less than the 500 bytes that 10,000 in 5 MB leave."""
    monkeypatch.setattr(timeline, "MOST_BARS", 100)
    sizes = []
    for shards in (150, 450):
        made = pretend.run(tmp_path / str(shards), shards=shards, matrices=10, summed=False)
        sizes.append(len(page.render(look(made)).encode()))
    assert sizes[0] < sizes[1] < sizes[0] + 300 * 400
