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
AT_NIGHT = ("commands", "dispatch", "proof", "reduce")  # test_freivalds.py runs proof's code


@pytest.mark.parametrize("script", ["kernels", "shard_jobs", *map(nightly, AT_NIGHT)])
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
