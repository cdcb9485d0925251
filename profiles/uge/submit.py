#!/usr/bin/env python3
"""Submit the job whose script Snakemake names, and print its number."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from shardwise.errors import ShardwiseError
from shardwise.workflow import grid_engine

try:
    number = grid_engine.submit(Path(sys.argv[-1]), Path(__file__).resolve().with_name("job.sh"))
except ShardwiseError as error:
    sys.exit(f"shardwise: Grid Engine did not take a job: {error}")
except KeyboardInterrupt:
    sys.exit(1)  # Snakemake has it too, and says so
sys.stdout.write(f"{number}\n")
