"""Each benchmark runs, in its tiny form and without a GPU."""

import os
import re
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
TABLES = {
    "commands": [16], "dispatch": [2, 3], "kernels": [2], "proof": [3, 4],
    "reduce": [2], "shard_jobs": [1],
}  # fmt: skip
"""For each benchmark, the numbers of rows of its tables."""

BY_DAY = ("kernels", "shard_jobs")
"""The code of ``proof`` is run by day in test_freivalds_rates.py."""


@pytest.mark.parametrize("script", [s if s in BY_DAY else nightly(s) for s in TABLES])
def test_a_benchmark_fills_its_tables(tmp_path: Path, script: str) -> None:
    """Its tables have all rows, no result is wrong, and no file is left."""
    line = [sys.executable, str(BENCHMARKS / f"{script}.py"), "--tiny", *MORE.get(script, ())]
    done = subprocess.run(
        line, capture_output=True, text=True, check=False, timeout=240,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    tables = re.findall(r"(?:^\|.*\n)+", done.stdout, re.MULTILINE)
    assert [table.count("\n") - 2 for table in tables] == TABLES[script], done.stdout
    assert list(tmp_path.iterdir()) == []
    assert "wrong by" not in done.stderr
