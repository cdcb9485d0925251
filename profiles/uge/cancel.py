#!/usr/bin/env python3
"""Delete all jobs of the run. Snakemake names some of them, but not one that it just submits."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from shardwise.workflow import grid_engine

if sys.argv[1:] == ["--stay"]:
    grid_engine.cancel(grid_engine.folder())
else:
    grid_engine.cancel_detached(Path(__file__).resolve())
