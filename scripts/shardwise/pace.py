"""How far a long piece of work is, in the log now and then."""

import time

from shardwise.errors import log
from shardwise.units import seconds

_EVERY_SECONDS = 10.0


class Pace:
    """Counts what is done of ``total``; logs how far that is, and how long the rest will take."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._done = what, total, 0
        self._began = self._told = time.monotonic()

    def add(self, amount: int) -> None:
        """Count some more, from any thread."""
        self._done += amount
        now = time.monotonic()
        if now - self._told > _EVERY_SECONDS and self._done:
            self._told, part = now, self._done / self._total
            left = seconds((now - self._began) * (1 - part) / part)
            log.info("%s: %.0f %% done; about %s to go", self._what, 100 * part, left)
