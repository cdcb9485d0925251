"""What is seen of a run in a terminal: figures, pictures of any size, lines and JSON."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from shardwise.files.paths import Results
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
        "running": {"started": AT - 5, "device": GPUS[number % 2]},
        "failed": {"failure": TROUBLE},
    }.get(state, {})
    return ShardStatus(f"{number:05}", state, 10 * GIB, **(known | over))


def status(*states: str, kind: str = "", words: str = "", **over: object) -> Status:
    """A run of shards in these states, with a verdict."""
    shards = {f"{n:05}": shard(n, state) for n, state in enumerate(states)}
    living = over.pop("living", "running" in states or None)
    seen = Status(Results(Path("results/big")), AT, None, shards, living=living, **over)
    kind = kind or "failed" * ("failed" in states) or "unfinished"
    seen.__dict__["verdict"] = Verdict(kind, words)
    return seen


def busy(**over: object) -> Status:
    """22 shards: ten done, two running, one failed, one damaged, the others waiting."""
    states = ["done"] * 10 + ["running"] * 2 + ["failed", "damaged"] + ["waiting"] * 8
    return status(*states, **over)


def text(seen: Status, width: int, most: int = 12) -> str:
    """A picture without colours."""
    file = io.StringIO()
    Console(file=file, width=width, highlight=False).print(draw(seen, most))
    return file.getvalue()


def test_counts_bytes_and_rates() -> None:
    """A running shard counts as not done; the time left is by the rate of the last minutes."""
    seen = busy()
    assert seen.counts == {"done": 10, "running": 2, "failed": 1, "waiting": 8, "damaged": 1}
    # Ten shards in 50 s; the progress of the two that began 5 s ago is not known.
    assert seen.rate == pytest.approx(100 * GIB / 50)
    # Two running shards and eight that wait; failed and damaged ones do not count.
    assert seen.left == pytest.approx(10 * 10 * GIB / seen.rate)
    found = seen.json()
    assert found["bytes"] == {"done": 100 * GIB, "all": 220 * GIB}
    assert found["devices"][0]["uuid"] == GPUS[0].uuid
    (failure,) = found["failures"]
    assert (failure["of"], failure["code"], failure["device"]) == ("00012", 75, GPUS[1].uuid)
    # A pause before a rerun is no time at work, however long.
    spans = [(AT - 9000, AT - 8000), (AT - 210, AT - 200), (AT - 5, AT)]
    shards = [shard(n, "done", started=b, finished=e) for n, (b, e) in enumerate(spans)]
    seen = replace(status("waiting"), shards={one.shard: one for one in shards})
    assert seen.rate == pytest.approx(2 * 10 * GIB / 15)


@pytest.mark.parametrize(("states", "kind", "living", "over"), [
    ("done running", "unfinished", True, False), ("done waiting", "unfinished", None, False),
    ("done waiting", "unfinished", False, True), ("done", "proven", True, False),
    ("done", "proven", None, True),
])  # fmt: skip
def test_the_words_promise_no_more_than_is_known(states, kind, living, over):
    """It says if a run lives; a sum is not the end while one does; else no rate is given."""
    seen = status(*states.split(), kind=kind, words="It is so.", living=living)
    assert seen.headline == "A run is at work here. " * (living is True) + "It is so."
    assert (seen.over, seen.rate is None) == (over, living is False)


@pytest.mark.parametrize("width", [20, 79])
@pytest.mark.parametrize("most", [3, 99])
def test_a_picture_fits_its_terminal(width: int, most: int) -> None:
    """No line is wider than the terminal, and long lists are cut short."""
    lines = text(busy(damage=("x" * 300,) * 90), width, most).split("\n")
    assert max(map(cell_len, lines)) <= width
    assert (len(lines) > 90) == (most == 99)


HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\n\u202eevil\x9b31m\udc80"


def test_nothing_from_a_file_steers_the_terminal() -> None:
    """Names, reasons, logs and problems keep their letters, but no control character."""
    device = Device(HOSTILE, HOSTILE, HOSTILE)
    trouble = Failure(HOSTILE, 3, HOSTILE, HOSTILE, AT, HOSTILE, log=HOSTILE)
    states = {"running": {"device": device}, "failed": {"failure": trouble}}
    shards = {s: shard(n, s, **over) for n, (s, over) in enumerate(states.items())}
    seen = Status(Results(Path(f"a{HOSTILE}")), AT, None, shards, damage=(HOSTILE,))
    shown = text(seen, 199)
    assert "evil" in shown
    assert all(letter.isprintable() for letter in shown.replace("\n", ""))
    json.dumps(seen.json()).encode("ascii")
