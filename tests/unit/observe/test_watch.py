"""What is seen of a run in a terminal: figures, pictures of any size, lines and JSON."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from shardwise import cli
from shardwise.devices.quarantine import Entry
from shardwise.files.paths import Results
from shardwise.observe import observation as observations
from shardwise.observe import status
from shardwise.observe import watch as watchs
from shardwise.observe.observation import DeviceOfNode, FailureReason, Observation, Sighting
from shardwise.observe.status import Look
from shardwise.observe.watch import draw, when_done

AT = 1_795_000_000.0
GIB = 2**30
GPUS = [DeviceOfNode("NVIDIA H200", f"GPU-0000000{n}-1111-2222-3333-444444444444", "node01")
        for n in range(3)]  # fmt: skip


def sighting(number: int, state: str, **over: object) -> Sighting:
    """A shard of 10 GiB; done ones took 10 s each, one after the other, on two devices."""
    began = AT - 60 + 10 * (number // 2)
    known: dict = {
        "done": {"started": began, "finished": began + 10, "device": GPUS[number % 2]},
        "running": {"started": AT - 5, "device": GPUS[number % 2], "progress": 0.5},
        "failed": {"failure": FailureReason("out of memory", f"logs/multiply/{number:05}.log", AT)},
    }.get(state, {})
    return Sighting(f"{number:05}", state, 100, 10 * GIB, **(known | over))


def observation(*states: str, **over: object) -> Observation:
    """A run of shards in these states."""
    shards = {f"{n:05}": sighting(n, state) for n, state in enumerate(states)}
    return Observation(Results(Path("results/big")), AT, None, shards, None, **over)


def busy(**over: object) -> Look:
    """Ten shards done, two running, one failed, one damaged, eight waiting."""
    states = ["done"] * 10 + ["running"] * 2 + ["failed", "damaged"] + ["waiting"] * 8
    seen = observation(*states, **over)
    verdict = observations.Verdict("failed", "Not finished: 10 of 22 shards are done, 1 failed.")
    return replace(status.look(seen), verdict=verdict)


def text(look: Look, width: int, height: int | None = None, encoding: str = "utf-8") -> str:
    """A picture without colours."""
    file = io.TextIOWrapper(io.BytesIO(), encoding, errors="replace")
    console = Console(file=file, width=width, highlight=False)
    console.print(draw(look, console, height))
    file.flush()
    lines = file.buffer.getvalue().decode(encoding).splitlines()
    return "\n".join(line.rstrip() for line in lines)


# Figures.


def test_counts_bytes_and_rates() -> None:
    """Half of a running shard is half of its bytes; what is left goes at the last minutes' rate."""
    look = busy()
    assert look.counts == {"done": 10, "running": 2, "failed": 1, "waiting": 8, "damaged": 1}
    assert look.done_bytes == 11 * 10 * GIB
    assert look.all_bytes == 22 * 10 * GIB
    # Ten shards in 50 s, a gap of 5 s, then half of two shards in 5 s.
    assert look.rate == pytest.approx(110 * GIB / 60)
    # Halves of two running shards and eight that wait; failed and damaged ones are not in it.
    assert look.left == pytest.approx(9 * 10 * GIB / look.rate)
    assert status.look(observation("done", "done", "failed")).left == 0.0
    assert status.look(observation()).left is None


@pytest.mark.parametrize(
    ("kind", "code"),
    [("proven", 0), ("unproven", 0), ("unfinished", 75), ("empty", 75), ("failed", 3),
     ("damaged", 3)],
)  # fmt: skip
def test_the_exit_code_says_whether_to_wait_or_to_act(kind: str, code: int) -> None:
    """0 all done, 75 unfinished and nothing failed, 3 somebody has to act."""
    assert replace(busy(), verdict=observations.Verdict(kind, "")).code == code


# Words.


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ((), "Waiting: no run has begun in results/big yet."),
        (("done", "running", "waiting"), "Running: 1 of 3 shards are done."),
        (("done", "running", "failed"), "Running: 1 of 3 shards are done, 1 have failed so far."),
        (("done", "failed"), "Not finished"),
    ],
)
def test_the_headline_says_running_while_all_goes_well(states: tuple[str, ...], words: str) -> None:
    """Whoever watches a run that goes on is not told that it is not finished."""
    kind = "empty" if not states else "failed" if "failed" in states else "unfinished"
    verdict = observations.Verdict(kind, "Not finished: it is so.")
    assert replace(status.look(observation(*states)), verdict=verdict).headline.startswith(words)


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ("running waiting", "time left unknown: nothing was done in the last minutes"),
        ("waiting waiting", "time left unknown: nothing was done in the last minutes"),
        ("done failed", "what is left has to be run again"),
        ("done", "all shards are done; the sum is next"),
    ],
)
def test_the_end_is_not_promised_where_it_is_not_known(states: str, words: str) -> None:
    """Instead of a time it says why there is none."""
    seen = observation(*states.split())
    silent = {name: replace(one, progress=None) for name, one in seen.shards.items()}
    look = status.look(replace(seen, shards=silent))
    assert when_done(replace(look, verdict=observations.Verdict("unfinished", ""))) == words


# Pictures.


def test_a_picture_of_80_columns() -> None:
    """Headline, bar, counts, rate, time left; then devices, failures and what is barred."""
    lines = text(busy(problems=("the plan is odd",)), 79).splitlines()
    assert re.fullmatch(r"shardwise results/big +\d\d:\d\d:\d\d", lines[0])
    assert lines[1] == "Running: 10 of 22 shards are done, 1 have failed so far."
    assert re.fullmatch(r"\[█+▓+x+!+░+\]  50 %", lines[3])
    assert lines[4] == "█ 10 done   ▓ 2 running   x 1 failed   ! 1 damaged   ░ 8 waiting"
    assert lines[5] == "1.97 GB/s   110.0 GiB of 220.0 GiB"
    assert re.fullmatch(r"about 49.1 s left, done about \d\d:\d\d", lines[6])
    assert re.fullmatch(r"Devices +shard +name", lines[8])
    assert re.search(r"^  node01 GPU-00000000  00010  50 % 5 s  NVIDIA H200$", lines[9])
    assert re.search(r"node01 .*00011  50 % 5 s  NVIDIA H200$", lines[10])
    assert lines[12:] == [
        "Failed, the last first",
        "  00012  out of memory",
        "    log: logs/multiply/00012.log",
        "",
        "Remarks",
        "  the plan is odd",
    ]


@pytest.mark.parametrize("width", [20, 39, 79, 120, 199])
@pytest.mark.parametrize("height", [None, 3, 10, 24])
def test_a_picture_fits_its_terminal(width: int, height: int | None) -> None:
    """No line is wider, and there are no more lines than rows."""
    lines = text(busy(quarantined=barred(9), problems=("x" * 300,)), width, height).split("\n")
    assert max(map(cell_len, lines)) <= width
    assert height is None or len(lines) <= height


def barred(count: int) -> tuple[Entry, ...]:
    """Devices in quarantine."""
    return tuple(
        Entry(AT, "node01", f"GPU-{n:08}", "multiplied wrongly", "00003", AT + 3600)
        for n in range(count)
    )


HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\n\u202eevil\x9b31m\udc80"


def test_nothing_from_a_file_steers_the_terminal() -> None:
    """Names, reasons, logs and problems keep their letters, and lose what a terminal obeys."""
    device = DeviceOfNode(HOSTILE, HOSTILE, HOSTILE)
    seen = observation("done", "running", "failed", problems=(HOSTILE,))
    shards = {
        "00000": replace(seen.shards["00000"], device=device),
        "00001": replace(seen.shards["00001"], device=device),
        "00002": replace(seen.shards["00002"], failure=FailureReason(HOSTILE, HOSTILE, AT)),
    }  # fmt: skip
    entry = Entry(AT, HOSTILE, HOSTILE, HOSTILE, HOSTILE, AT)
    look = status.look(replace(seen, shards=shards, quarantined=(entry,),
                             results=Results(Path("a" + HOSTILE.replace("/", "")))))  # fmt: skip
    look = replace(look, verdict=observations.Verdict("failed", HOSTILE))
    shown = text(look, 199)
    assert "evil" in shown
    assert all(letter.isprintable() for letter in shown.replace("\n", ""))
    json.dumps(look.json()).encode("ascii")


# Lines and JSON.


def test_lines_come_when_something_changed_and_not_too_often(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One at once, none for ten seconds, none where nothing is new; the last state at the end."""
    now = [0.0]
    view = watchs.Lines(lambda: now[0])
    looks = [replace(busy(), counts=busy().counts | {"done": n, "waiting": 18 - n})
             for n in (10, 11, 12, 13)]  # fmt: skip
    shown = []
    with view:
        for now[0], number in ((0, 0), (5, 1), (10, 1), (30, 1), (31, 2), (32, 3)):
            view.show(looks[number])
            shown.append(capsys.readouterr().out.splitlines())
    assert [len(lines) for lines in shown] == [2, 0, 1, 0, 1, 0]
    assert "13 of 22 shards done" in capsys.readouterr().out
    first, second = shown[0]
    assert re.match(
        r"\d\d:\d\d:\d\d 10 of 22 shards done, 2 running, 1 failed, 8 waiting, 1 damaged; "
        r"1.97 GB/s; about",
        first,
    )
    # Told once, with its reason and its log.
    assert second.endswith("failed: 00012: out of memory (log: logs/multiply/00012.log)")


def test_json_has_everything_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """One object a look."""
    with watchs.Json() as view:
        view.show(busy(quarantined=barred(1)))
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert found["schema"] == 5
    assert found["shards"] == {"all": 22, "done": 10, "running": 2, "failed": 1, "waiting": 8,
                               "damaged": 1}  # fmt: skip
    assert found["seconds_left"] == pytest.approx(90 * 60 / 110)
    assert found["devices"][0]["uuid"] == GPUS[0].uuid
    assert found["quarantined"][0]["why"] == "multiplied wrongly"
    assert found["failures"][0]["of"] == "00012"


def test_without_a_host_only_this_machine_is_served() -> None:
    """Whoever wants more has to say so."""
    assert cli.address("9500") == ("127.0.0.1", 9500)
    assert cli.address("0.0.0.0:80") == ("0.0.0.0", 80)
