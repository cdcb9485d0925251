# What all rules share: `run` answers for file names, digests and resources.
#
# REQUIRED INPUTS: config (see workflow/schemas/config.schema.yaml); in a job also results/plan.tsv
# OUTPUTS: none

import sys
from pathlib import Path

sys.path.insert(
    0,
    str(
        Path(workflow.current_basedir.get_path_or_uri(secret_free=True)).parents[1]
        / "scripts"
    ),
)

from shardwise import progress
from shardwise.workflow import Run, shell_prefix

run = Run(config, main=workflow.is_main_process)
progress.attach(workflow, run)
shell.prefix(shell_prefix())


wildcard_constraints:
    shard="[0-9]+",
