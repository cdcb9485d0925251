"""What the logs of stages say. Standard library only."""

import logging
import os
import re
import shlex
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from shardwise.errors import IntegrityError, shown
from shardwise.files import small
from shardwise.files.paths import Results, make_folder

_LINE = re.compile(r"^\d{4}-\d\d-\d\d \S+ ([A-Z]+) (.*)")
_OF_A_SHARD = re.compile(r"shard (\d+): (.*) \(log: (.*)\)")
_EXIT_CODE = re.compile(r"exit code (\d{1,3})")
_TAIL_BYTES = 65536


def read(log: Path | None) -> str:
    """A whole log; empty if there is none."""
    try:
        return log.read_text(errors="replace") if log else ""
    except OSError:
        return ""


def read_tail(log: Path) -> str:
    """The end of a log, enough to tell how a stage ended; empty if there is none."""
    try:
        return (small.read(log, _TAIL_BYTES, end=True) or b"").decode(errors="replace")
    except IntegrityError:
        return ""


def parse_lines(text: str) -> list[tuple[str, str]]:
    """Level and message of the lines in a log that Shardwise wrote."""
    return [(m[1], m[2]) for line in text.splitlines() if (m := _LINE.match(line))]


def find_errors(text: str) -> list[str]:
    """The errors in a log, in order."""
    return [message for level, message in parse_lines(text) if level == "ERROR"]


def find_exit_code(text: str) -> int | None:
    """The exit code of a stage, from its log, if it failed and lived to log it."""
    codes = [m[1] for _, message in parse_lines(text) if (m := _EXIT_CODE.fullmatch(message))]
    return int(codes[-1]) if codes else None


def find_failed_shards(text: str) -> list[tuple[str, str, str]]:
    """Id, reason and log of the shards that the one job for all reports as failed for good."""
    named = [_OF_A_SHARD.fullmatch(message) for message in find_errors(text)]
    return [(match[1], match[2], match[3]) for match in named if match]


def find_last_words(text: str) -> str | None:
    """Why a stage has ended: its last error, or a last line that Shardwise did not log."""
    if errors := find_errors(text):
        return errors[-1]
    last = text.splitlines()[-1:]
    return last[0] if last and not _LINE.match(last[0]) else None


def ended_well(text: str, shard: str) -> bool:
    """Whether a shard's log ends with the line that its receipt was written."""
    last = parse_lines(text)[-1:]
    return bool(last) and last[0][1].endswith(f"{shard}.json written")


def settle(results: Results, shard: str) -> list[str]:
    """Remove the log and journal of a shard that just succeeded at once.

    Both stay if the journal has several attempts, or if the log says more than the receipt: a
    warning, or a line that Shardwise did not log.

    Returns
    -------
    list of str
        The messages of the removed log, without those of `log_start`.
    """
    log, starts = results.log("multiply", shard), results.starts(shard)
    try:
        text, journal = ((small.read(path) or b"").decode() for path in (log, starts))
    except (IntegrityError, UnicodeDecodeError):
        return []
    lines = parse_lines(text)
    quiet = all(level == "INFO" for level, _ in lines) and len(lines) == len(text.splitlines())
    if not quiet or journal.count("\n") > 1:
        return []
    for path in (log, starts):
        with suppress(OSError):  # a full disk, or no such file
            path.unlink()
    return [message for _, message in lines if not message.startswith(("on ", "by hand: "))]


def add_error(path: Path, reason: str, level: str = "ERROR") -> None:
    """Add a line to the log of a stage that could not log itself why it failed.

    Nothing is added if the log has that reason already; if the disk is full, only the line is lost.
    """
    with suppress(OSError):
        make_folder(path.parent)
        with open(path, "a+b") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            tail = file.read()
            if reason.encode(errors="replace") not in tail:
                file.write(b"" if tail.endswith(b"\n") or not tail else b"\n")
                now = time.time()
                stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
                line = f"{stamp},{int(now % 1 * 1000):03} {level} {reason}\n"
                file.write(line.encode(errors="replace"))


_STATUS = re.compile(r"status is: '?([A-Z_]+)")


def explain(log: Path | None, scheduler_says: str | None) -> str:
    """Why a job failed: its own last error, and what the scheduler says if it ended the job."""
    status = _STATUS.search(scheduler_says or "")
    parts = [f"the scheduler says {status[1]}"] if status and status[1] != "FAILED" else []
    if words := find_last_words(read(log)):
        parts.append(words)
    elif not parts:
        parts.append("it left no error in its log: killed, lost with its node, or never started")
    return "; ".join(parts)


log = logging.getLogger("shardwise")


class Shown(logging.Formatter):
    """Formats a record for a terminal, with its traceback: see `shown`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, or lines, of a record."""
        return shown(super().format(record))


def begin() -> None:
    """Let this process log to stderr, in the format of every log of Shardwise."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Shown("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def log_start(argv: Sequence[str]) -> None:
    """Log where this runs, and the command that does the same by hand."""
    command = shlex.join([sys.executable, *argv])
    log.info("on %s, process %d, in %s", socket.gethostname(), os.getpid(), os.getcwd())
    log.info("by hand: cd %s && %s", shlex.quote(os.getcwd()), command)
