#!/usr/bin/env python3
"""Print what becomes of a job: running, success or failed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from shardwise.dispatch import uge_run

sys.stdout.write(f"{uge_run.look(sys.argv[1])}\n")
