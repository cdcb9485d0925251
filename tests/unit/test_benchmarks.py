"""Each benchmark runs, in its tiny form and without a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.factories import nightly
from tests.workspace import REPO

BENCHMARKS = REPO / "benchmarks"
MORE = {
    "dispatch": ["--places", "local"],
    "proof": ["--only", "float32", "complex64", "int16"],
    "reduce": ["--only", "float32 d=(8 products cold ranks=2|72 sum cached ranks=1)"],
}
SCRIPTS = ("commands", "dispatch", "kernels", "proof", "reduce", "shard_jobs")

BY_DAY = ("kernels", "shard_jobs")
"""The code of ``proof`` is run by day in test_freivalds.py."""


@pytest.mark.parametrize("script", [s if s in BY_DAY else nightly(s) for s in SCRIPTS])
def test_a_benchmark_fills_a_table(tmp_path: Path, script: str) -> None:
    """It prints rows, no result is wrong, and no file is left."""
    line = [sys.executable, str(BENCHMARKS / f"{script}.py"), "--tiny", *MORE.get(script, ())]
    done = subprocess.run(
        line, capture_output=True, text=True, check=False, timeout=240,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n|") > 2, done.stdout
    assert list(tmp_path.iterdir()) == []
    assert "wrong by" not in done.stderr
