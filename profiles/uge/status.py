#!/usr/bin/env python3
"""Print what becomes of a job: running, success or failed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from shardwise.workflow import grid_engine

sys.stdout.write(f"{grid_engine.look(sys.argv[1])}\n")
