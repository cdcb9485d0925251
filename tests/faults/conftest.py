"""Programs of this folder, run as subprocesses."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.factories import ROOT, SCRIPTS


class Program:
    """Runs a program of this folder, which works in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, name: str, *words: object) -> dict[str, Any]:
        """What the program reports."""
        folder = tempfile.mkdtemp(dir=self._folder)
        # Libraries that start threads would keep it from forking.
        own = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-m", f"tests.faults.{name}", folder, *map(str, words)],
            env=os.environ | own | {"PYTHONPATH": f"{SCRIPTS}:{ROOT}"},
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    """A program with a folder in memory: tens of thousands of fsyncs would take a disk minutes."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="faults-", dir=memory) as folder:
        yield Program(Path(folder))
