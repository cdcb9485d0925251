#!/usr/bin/env python3
"""Delete all jobs of the run. Snakemake names some of them, but not one that it just submits."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from shardwise.dispatch import uge_run

if sys.argv[1:] == ["--stay"]:
    uge_run.cancel(uge_run.folder())
else:
    uge_run.cancel_detached(Path(__file__).resolve())
