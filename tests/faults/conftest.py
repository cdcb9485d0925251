"""Programs of this folder, run as subprocesses."""

import json
import os
import subprocess
import sys
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
        # Libraries that start threads would keep it from forking.
        own = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-m", f"tests.faults.{name}", str(self._folder), *map(str, words)],
            env=os.environ | own | {"PYTHONPATH": f"{SCRIPTS}:{ROOT}"},
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout)


@pytest.fixture
def program(tmp_path) -> Program:
    """A program with a folder of the test."""
    return Program(tmp_path)
