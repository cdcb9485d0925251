"""`program.py` of this folder, run as a subprocess."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.factories import ROOT, SCRIPTS


@pytest.fixture(scope="module")
def program() -> Iterator[Callable[..., dict[str, Any]]]:
    """Runs `program.py` in a folder in memory: on a disk its many fsyncs would take minutes."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="faults-", dir=memory) as folder:

        def run(*words: object) -> dict[str, Any]:
            own = tempfile.mkdtemp(dir=folder)
            # It forks, so no library may start threads.
            env = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            done = subprocess.run(
                [sys.executable, "-m", "tests.faults.program", own, *map(str, words)],
                env=os.environ | env | {"PYTHONPATH": f"{SCRIPTS}:{ROOT}"},
                cwd=ROOT, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr[-4000:]
            return json.loads(done.stdout)

        yield run
