"""What is seen of a run in a terminal: figures, pictures of any size, lines and JSON."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.cells import cell_len
from rich.console import Console
from shardwise import cli
from shardwise.files.paths import Results
from shardwise.observe import watch
from shardwise.observe.status import Device, ShardStatus, Status, Verdict
from shardwise.observe.watch import draw
from shardwise.records.failures import Failure

AT = 1_795_000_000.0
GIB = 2**30
GPUS = [Device("NVIDIA H200", f"GPU-0000000{n}-1111-2222-3333-444444444444", "node01")
        for n in range(3)]  # fmt: skip
TROUBLE = Failure("00012-00aa", 75, "out of memory", "node01", AT, GPUS[1].uuid, log="logs/x.log")


def shard(number: int, state: str, **over: object) -> ShardStatus:
    """A shard of 10 GiB; done ones took 10 s each, one after the other, on two devices."""
    began = AT - 60 + 10 * (number // 2)
    known: dict = {
        "done": {"started": began, "finished": began + 10, "device": GPUS[number % 2]},
        "running": {"started": AT - 5, "device": GPUS[number % 2], "progress": 0.5},
        "failed": {"failure": TROUBLE},
    }.get(state, {})
    return ShardStatus(f"{number:05}", state, 100, 10 * GIB, **(known | over))


def status(*states: str, kind: str = "", words: str = "", **over: object) -> Status:
    """A run of shards in these states, with a verdict."""
    shards = {f"{n:05}": shard(n, state) for n, state in enumerate(states)}
    living = over.pop("living", "running" in states or None)
    seen = Status(Results(Path("results/big")), AT, None, shards, living=living, **over)
    seen.__dict__["verdict"] = Verdict(
        kind or "failed" * ("failed" in states) or "unfinished", words
    )
    return seen


def busy(done: int = 10, **over: object) -> Status:
    """Ten shards done or more, two running, one failed, one damaged, the others of 22 waiting."""
    states = ["done"] * 10 + ["running"] * 2 + ["failed", "damaged"] + ["done"] * (done - 10)
    return status(*states, *["waiting"] * (18 - done), **over)


def text(seen: Status, width: int, most: int = 12, encoding: str = "utf-8") -> str:
    """A picture without colours."""
    file = io.TextIOWrapper(io.BytesIO(), encoding, errors="replace")
    Console(file=file, width=width, highlight=False).print(draw(seen, most))
    file.flush()
    lines = file.buffer.getvalue().decode(encoding).splitlines()
    return "\n".join(line.rstrip() for line in lines)


def test_counts_bytes_and_rates() -> None:
    """Half of a running shard is half of its bytes; what is left goes at the last minutes' rate."""
    seen = busy()
    assert seen.counts == {"done": 10, "running": 2, "failed": 1, "waiting": 8, "damaged": 1}
    assert (seen.done_bytes, seen.all_bytes) == (110 * GIB, 220 * GIB)
    # Ten shards in 50 s, a gap of 5 s, then half of two shards in 5 s.
    assert seen.rate == pytest.approx(110 * GIB / 60)
    # Halves of two running shards and eight that wait; failed and damaged ones are not in it.
    assert seen.left == pytest.approx(9 * 10 * GIB / seen.rate)
    assert status("done", "done", "failed").left == 0.0
    assert status().left is None


def test_the_pause_before_a_rerun_is_no_part_of_the_rate() -> None:
    """Ten seconds after it began it is the rate of these ten seconds."""
    old = {"started": AT - 9000, "finished": AT - 8000}
    shards = {
        "00000": shard(0, "done", **old),
        "00001": shard(1, "done", started=AT - 10, finished=AT),
    }
    seen = replace(status(), shards=shards)
    assert seen.rate == pytest.approx(GIB)


@pytest.mark.parametrize(
    ("states", "living", "headline", "end"),
    [
        ("", None, "Waiting: results/big holds no plan of a run yet.", "time left unknown"),
        ("", True, "Waiting: results/big holds no plan of a run yet.", "time left unknown"),
        ("", False, "Not finished", "no run is at work"),
        ("done running waiting", True, "Running: 1 of 3 shards are done.", "about 60 s left"),
        ("done running failed", True, "Running: 1 of 3 shards are done, 1 have failed", "about"),
        ("done waiting", True, "Running: 1 of 2 shards are done.", "about"),
        ("done waiting", False, "Not finished", "no run is at work"),
        ("done failed", None, "Not finished", "what is left has to be run again"),
        ("waiting waiting", None, "Not finished", "time left unknown: nothing was done in the"),
        ("done", None, "Not finished", "the sum is next"),
        ("done", True, "Running: 1 of 1 shards are done.", "the sum is next"),
    ],
)
def test_the_words_promise_no_more_than_is_known(
    states: str, living: bool | None, headline: str, end: str
) -> None:
    """A run that lives is not told to be unfinished; where none lives, there is no time left."""
    kind = "" if states else "empty"
    seen = status(*states.split(), kind=kind, words="Not finished: it is so.", living=living)
    assert seen.headline.startswith(headline)
    assert seen.when_done.startswith(end)
    assert (seen.left is None) == end.startswith(("no run", "time left unknown"))


def test_a_run_that_begins_on_an_earlier_sum_is_waited_for() -> None:
    """It may replace that sum: neither the watch nor its words end with what the last run made."""
    for living, words in (
        (True, "A run is at work here. So far: It is right."),
        (False, "It is right."),
        (None, "It is right."),
    ):
        seen = status("done", kind="proven", words="It is right.", living=living)
        assert (seen.over, seen.headline) == (not living, words)


def test_a_picture_of_80_columns() -> None:
    """Headline, bar, counts, rate, time left; then what is at work, failures and remarks."""
    lines = text(busy(problems=("the plan is odd",)), 99).splitlines()
    assert re.fullmatch(r"shardwise results/big +\d\d:\d\d:\d\d", lines[0])
    assert lines[1] == "Running: 10 of 22 shards are done, 1 have failed so far."
    assert lines[3].endswith(" 50 %, 110.0 GiB of 220.0 GiB")
    told = (
        "10 of 22 shards done, 2 running, 1 failed, 8 waiting, 1 damaged; 1.97 GB/s; about 49.1 s"
    )
    assert re.fullmatch(rf"{told} left, done about \d\d:\d\d", " ".join(lines[4:6]))
    assert lines[7:] == [
        "At work",
        "  00010  50 % 5 s  NVIDIA H200 · node01 · GPU-00000000",
        "  00011  50 % 5 s  NVIDIA H200 · node01 · GPU-00000001",
        "",
        "Failed, the last first",
        "  00012  out of memory",
        "    on GPU-00000001-1111-2222-3333-444444444444 of node01, exit code 75, log: logs/x.log",
        "",
        "Remarks",
        "  the plan is odd",
    ]


@pytest.mark.parametrize("width", [20, 39, 79, 199])
@pytest.mark.parametrize("most", [3, 99])
def test_a_picture_fits_its_terminal(width: int, most: int) -> None:
    """No line is wider, and long lists leave room for the others."""
    lines = text(busy(problems=("x" * 300,) * 90), width, most).split("\n")
    assert max(map(cell_len, lines)) <= width
    assert (len(lines) > 90) == (most == 99)


HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\n\u202eevil\x9b31m\udc80"


def test_nothing_from_a_file_steers_the_terminal() -> None:
    """Names, reasons, logs and problems keep their letters, and lose what a terminal obeys."""
    device = Device(HOSTILE, HOSTILE, HOSTILE)
    trouble = Failure(HOSTILE, 3, HOSTILE, HOSTILE, AT, HOSTILE, log=HOSTILE)
    states = {"done": {"device": device}, "running": {"device": device},
              "failed": {"failure": trouble}}  # fmt: skip
    shards = {s: shard(n, s, **over) for n, (s, over) in enumerate(states.items())}
    root = Results(Path("a" + HOSTILE.replace("/", "")))
    seen = Status(root, AT, None, shards, problems=(HOSTILE,))
    shown = text(seen, 199)
    assert "evil" in shown
    assert all(letter.isprintable() for letter in shown.replace("\n", ""))
    json.dumps(seen.json()).encode("ascii")


def test_what_is_news_is_the_same_whatever_the_rate() -> None:
    """Counts that have changed, and each failure with its reason and log; no other time left."""
    first, later = watch.news(busy()), watch.news(replace(busy(), at=AT + 1))
    assert first.keys() == later.keys()
    assert first != later
    assert first.keys() & watch.news(busy(11)).keys() == {
        "failed: 00012: out of memory (log: logs/x.log)"
    }
    words = "10 of 22 shards done, 2 running, 1 failed, 8 waiting, 1 damaged; 1.97 GB/s; about"
    assert [*first.values()][1].startswith(words)


def test_json_has_everything_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """One object a look."""
    watch.show_once(SimpleNamespace(look=busy), as_json=True)
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert found["schema"] == 6
    assert found["shards"] == {"all": 22, "done": 10, "running": 2, "failed": 1, "waiting": 8,
                               "damaged": 1}  # fmt: skip
    assert found["seconds_left"] == pytest.approx(90 * 60 / 110)
    assert found["devices"][0]["uuid"] == GPUS[0].uuid
    (failure,) = found["failures"]
    assert (failure["of"], failure["code"], failure["device"]) == ("00012", 75, GPUS[1].uuid)


def test_without_a_host_only_this_machine_is_served() -> None:
    """Whoever wants more has to say so."""
    assert cli.address("9500") == ("127.0.0.1", 9500)
    assert cli.address("0.0.0.0:80") == ("0.0.0.0", 80)
