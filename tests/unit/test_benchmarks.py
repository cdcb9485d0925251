"""The benchmarks run: each in its tiny form, without a GPU."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
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


@pytest.fixture
def modules(monkeypatch):
    """The benchmarks' folder on the path, as their own scripts have it."""
    monkeypatch.syspath_prepend(BENCHMARKS)


def tiny(script: str, folder: Path, *words: object) -> str:
    """What a tiny run prints; it must succeed."""
    where = [] if script in FOLDERLESS else ["--folder", folder / "work"]
    own = ["--tiny", *where, *MORE.get(script, ()), *words]
    line = [sys.executable, str(BENCHMARKS / f"{script}.py"), *map(str, own)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("script", [s if s in BY_DAY else nightly(s) for s in TABLES])
def test_a_benchmark_fills_its_tables(tmp_path: Path, script: str) -> None:
    """Ours is measured in each row, what needs a GPU says so, and the folder is left empty."""
    text = tiny(script, tmp_path)
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert [table.count("\n") - 2 for table in tables] == TABLES[script], text
    if script not in FOLDERLESS:
        assert list((tmp_path / "work").iterdir()) == []
    assert "wrong by" not in text


def test_a_spent_budget_skips_and_says_so(tmp_path: Path) -> None:
    """Out of time, nothing is begun, and every row that is missing is named."""
    text = tiny("kernels", tmp_path, "--minutes", 0)
    assert text.count("skipped, out of time") >= 2


def test_a_wrong_product_is_no_figure(modules) -> None:
    """A kernel that leaves the last product unwritten, or is off, is found."""
    import kernels

    cell = kernels.Cell("float32", 8)
    a = np.random.default_rng(0).standard_normal((4, 8, 8)).astype("float32")
    out = a @ a
    assert kernels.wrongness(np, cell, a, out, 4) < kernels.ERRORS["float32"]
    out[3, 5, 5] += 0.1
    assert kernels.wrongness(np, cell, a, out, 4) > kernels.ERRORS["float32"]
    out[3, 0, 0] = np.nan
    assert np.isnan(kernels.wrongness(np, cell, a, out, 4))


def test_a_wrong_sum_is_no_figure(modules, tmp_path) -> None:
    """The sum of the reduce is compared with that of the plain loop."""
    import reduce as benchmark
    from shardwise.files.paths import Results

    total, made = np.random.default_rng(0).standard_normal((8, 8)), Results(tmp_path / "results")
    made.root.mkdir()
    np.save(made.root.with_name(benchmark.PLAIN), total)
    np.save(made.statistic("sum"), total * (1 + 1e-15))
    benchmark.check(SimpleNamespace(results=made))
    total[3, 5] = np.nextafter(total[3, 5], np.inf, dtype="float32")
    np.save(made.statistic("sum"), total)
    with pytest.raises(ValueError, match="the sums differ"):
        benchmark.check(SimpleNamespace(results=made))
