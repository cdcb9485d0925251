#!/usr/bin/env python3
"""Submit the job whose script Snakemake names, and print its number."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from shardwise.dispatch import uge_run
from shardwise.errors import ShardwiseError

try:
    number = uge_run.submit(Path(sys.argv[-1]), Path(__file__).resolve().with_name("job.sh"))
except ShardwiseError as error:
    sys.exit(f"shardwise: Grid Engine did not take a job: {error}")
sys.stdout.write(f"{number}\n")
