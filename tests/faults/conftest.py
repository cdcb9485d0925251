"""Programs of this folder, run as subprocesses."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.factories import ROOT, SCRIPTS

Program = Callable[..., dict[str, Any]]


@pytest.fixture
def program(tmp_path) -> Program:
    """Run a program of this folder; what it reports."""

    def run(name: str, *words: object) -> dict[str, Any]:
        # Libraries that start threads would keep the program from forking.
        own = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-m", f"tests.faults.{name}", str(tmp_path), *map(str, words)],
            env=os.environ | own | {"PYTHONPATH": f"{SCRIPTS}:{ROOT}"},
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout)

    return run
