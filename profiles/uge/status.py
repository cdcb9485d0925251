#!/usr/bin/env python3
"""Print what becomes of a job: running, success or failed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from shardwise.dispatch import uge_run

try:
    answer = uge_run.status(sys.argv[1])
except Exception as error:  # any other end of this script would end the run
    sys.stderr.write(f"shardwise: the state of job {sys.argv[1]} is not known: {error}\n")
    answer = "running"
sys.stdout.write(f"{answer}\n")
