"""A snakemake that looks at its jobs every second: Slurm's plugin waits longer each time."""

import os
from pathlib import Path


def environment() -> dict[str, str]:
    """Variables under which snakemake waits a second at most between two looks at its jobs.

    Slurm's plugin waits 10 s more after each look at which no job had ended, and has no option for
    it. Python reads `sitecustomize.py` of this folder, which does it, in every process.
    """
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "IMPATIENT": "1"}
