# What all rules share: `run` knows the file names, digests and resources of all jobs.
#
# REQUIRED INPUTS: config (see workflow/schemas/config.schema.yaml); in a job also plan.tsv of the results
# OUTPUTS: none

import gc
import sys
from pathlib import Path

sys.path.insert(
    0,
    str(
        Path(workflow.current_basedir.get_path_or_uri(secret_free=True)).parents[1]
        / "scripts"
    ),
)

from shardwise.workflow import progress
from shardwise.workflow.hooks import shell_prefix
from shardwise.workflow.run import Run, counted

# Many shards and their jobs make millions of objects that live until the run ends. Python's garbage
# collector would search them again and again for objects to free, and find none.
gc.set_threshold(200_000, 100, 100)

run = Run(config, workflow)
progress.attach(workflow, run)
shell.prefix(shell_prefix(workflow.deployment_settings.deployment_method))


wildcard_constraints:
    shard="[0-9]+",
    thousand="[0-9]+",
    key="[0-9a-f]{12}",
    missing="[0-9a-f]{12}",
