"""The benchmarks run: each in its tiny form, without a GPU."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.factories import nightly
from tests.workspace import REPO

BENCHMARKS = REPO / "benchmarks"
FOLDERLESS = ("dry_run", "kernels", "makespan", "proof")
MORE = {
    "dispatch": ["--scheduler", "none"],
    "proof": ["--only", "float32", "complex64", "int16"],
    "reduce": ["--only", "float32 d=(8 products cold ranks=2|72 sum cached ranks=1)"],
}
TABLES = {
    "dispatch": [3], "dry_run": [7], "kernels": [2, 1], "makespan": [2], "many_shards": [4],
    "proof": [3, 4], "reduce": [2], "shard_jobs": [1], "startup": [3],
}  # fmt: skip
"""The rows of the tables that each one fills."""

BY_DAY = ("kernels", "shard_jobs")
"""By day test_freivalds_rates.py runs what is in proof."""


@pytest.mark.parametrize("script", [s if s in BY_DAY else nightly(s) for s in TABLES])
def test_a_benchmark_fills_its_tables(tmp_path: Path, script: str) -> None:
    """Ours is measured in each row, what needs a GPU says so, and the folder is left empty."""
    where = [] if script in FOLDERLESS else ["--folder", tmp_path / "work"]
    line = [sys.executable, BENCHMARKS / f"{script}.py", "--tiny", *where, *MORE.get(script, ())]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    text = done.stdout
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert [table.count("\n") - 2 for table in tables] == TABLES[script], text
    if script not in FOLDERLESS:
        assert list((tmp_path / "work").iterdir()) == []
    assert "wrong by" not in text
