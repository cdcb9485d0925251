"""The watch as people and scripts start it: in a real terminal, in a pipe, once."""

import os
import signal
import subprocess
import termios
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from shardwise.records import locks

from tests import factories, pretend

ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"


def drawn(terminal: int, until: bytes = b"") -> bytes:
    """What a program draws until these words appear or, without words, until it has ended."""
    seen = b""
    with suppress(OSError):  # as the program has ended
        while not (until and until in seen):
            seen += os.read(terminal, 65536)
    return seen


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_leaves_the_terminal_as_it_was(tmp_path: Path, number: signal.Signals) -> None:
    """It draws on the alternate screen; in the end it restores all and prints a last picture."""
    made = pretend.run(tmp_path, shards=6, running=2, waiting=3, at=time.time())
    terminal, inner = os.openpty()
    termios.tcsetwinsize(inner, (30, 80))
    before = termios.tcgetattr(terminal)
    # xdist sets these, and they would override the terminal's own size.
    own = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    line = factories.command("watch", made.root, "--interval", 0.2)
    # As a shell does: only the foreground program of a terminal gets Ctrl-C.
    take = "env", "--default-signal=INT", "setsid", "--ctty"
    with subprocess.Popen(
        [*take, *line], stdin=inner, stdout=inner, stderr=inner,
        env=own | {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"},
    ) as process, open(terminal, "r+b", 0):  # fmt: skip
        os.close(inner)
        assert ENTER in drawn(terminal, until=b"At work")
        if number == signal.SIGINT:
            os.write(terminal, b"\x03")
        else:
            process.send_signal(number)
        _, last = drawn(terminal).split(LEAVE)
        assert process.wait() == 128 + number
        assert termios.tcgetattr(terminal) == before
    assert "shardwise" in last.decode()
    assert "Traceback" not in last.decode()


def piped(*words: object, **options: Any) -> Any:
    """The watch, whose output goes into a pipe."""
    return subprocess.Popen(
        factories.command("watch", *words), stdout=subprocess.PIPE, text=True, **options
    )


def test_it_waits_for_a_run_that_has_not_begun(tmp_path: Path) -> None:
    """Even if there is no folder yet; then it follows the run to its end."""
    root = tmp_path / "results"
    with piped(root, "--interval", 0.1, stderr=subprocess.DEVNULL) as process:
        assert "holds no plan of a run" in process.stdout.readline()
        pretend.run(tmp_path, shards=4, devices=2)
        rest = process.stdout.read()
    assert process.returncode == 0
    assert "4 of 4 shards done" in rest


def test_the_last_words_are_the_command_that_goes_on(tmp_path: Path) -> None:
    """Only once the run has ended; control characters in the command are escaped."""
    made = pretend.run(tmp_path, shards=4, failed=1)
    results = made.plan.results
    results.command.write_text("cd /a && snakemake --cores 2 \x1b[2J\n")
    results.running.touch()  # the lock of a run that was killed, while its jobs live on
    with (
        locks.take_lock(results.living, "busy") as held,
        piped(made.root, "--interval", 0.1) as process,
    ):
        assert "failed: " in process.stdout.readline()
        once = factories.run("watch", made.root, "--once").stdout
        assert "A run is at work here. Not finished: 3 of 4 shards done, 1 failed" in once
        assert "snakemake" not in once
        held.close()
        rest = process.stdout.read()
    assert process.returncode == 3
    assert "Not finished: 3 of 4 shards done, 1 failed." in rest
    assert rest.endswith("once no run is at work:\n  cd /a && snakemake --cores 2 \\x1b[2J\n")
