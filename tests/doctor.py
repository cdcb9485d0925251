"""What tests of the doctor share."""

import time
from pathlib import Path

from shardwise.doctor.findings import Deadline


class Once(Deadline):
    """A deadline that comes as soon as a file has been written, and not by the clock."""

    def __init__(self, path: Path) -> None:
        super().__init__(0)
        self._path = path

    def left(self) -> float:
        """Wait for the file; then time is up."""
        while not self._path.exists() or not self._path.read_text():
            time.sleep(0.01)
        return super().left()
