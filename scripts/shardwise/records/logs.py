"""How stages log: on stderr, in one format, with the command that does the same by hand."""

import logging
import os
import shlex
import socket
import sys
from collections.abc import Sequence

from shardwise.errors import shown

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
