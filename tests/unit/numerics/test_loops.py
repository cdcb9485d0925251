"""Compiled loops: processes share their machine code, and each can do without it."""

import os
import shutil
import subprocess
import sys

import numba
import numpy as np
from shardwise.numerics import loops
from shardwise.numerics.tree import TreeSum

from tests.factories import SCRIPTS

PROGRAM = """
import numpy as np
from shardwise.numerics import loops
from shardwise.numerics.tree import TreeSum

total = TreeSum(np, (3,), "float64")
total.add(np.ones((20, 3)), 0)
assert total.values()[0].tolist() == [20] * 3
made = loops.compiled(loops._fold, "float64")
print(made.stats.cache_path, sum(made.stats.cache_hits.values()))
"""


def test_compiled_loops_are_kept_and_shared(tmp_path):
    """Processes succeed if they start together without a cache, or later on a damaged one."""
    scripts = shutil.copytree(SCRIPTS, tmp_path / "a", ignore=shutil.ignore_patterns("__pycache__"))
    line = [sys.executable, "-W", "error", "-c", PROGRAM]
    options = {"env": os.environ | {"PYTHONPATH": str(scripts)}, "text": True}
    both = [subprocess.Popen(line, stdout=subprocess.PIPE, **options) for _ in range(2)]
    first = [process.communicate()[0].split() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    folder, hits = subprocess.check_output(line, **options).split()
    assert folder == first[0][0] == first[1][0]
    assert str(scripts) in folder
    assert hits == "1"
    assert len(list((scripts / "shardwise" / "numerics" / "__pycache__").rglob("*.nbi"))) == 1
    for index in scripts.rglob("*.nbi"):
        index.write_bytes(b"")
    assert subprocess.run(line, check=False, stdout=subprocess.PIPE, **options).returncode == 0


def test_loops_run_where_nothing_can_be_kept(monkeypatch):
    """Without a folder to write in, a loop is compiled and used all the same."""
    monkeypatch.setattr(numba.config, "CACHE_LOCATOR_CLASSES", "ZipCacheLocator")
    loops.compiled.cache_clear()
    try:
        total = TreeSum(np, (1,), "float64")
        total.add(np.array([[1.0], [2.0], [3.0]]), 0)
        assert total.values()[0].tolist() == [6]
        assert not loops.compiled(loops._fold, "float64").stats.cache_path
    finally:
        loops.compiled.cache_clear()
