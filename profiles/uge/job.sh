#!/bin/bash
# What Grid Engine runs: SCRIPT is Snakemake's for one job, MARKS the folder of the run.
# A login shell, and the script read into it, so that a site's set-up finds functions like `module`.
script=$1 marks=$2
(. "$script")
code=$?
[ "$code" = 0 ] || code=1 # 99 and 100 would mean something to Grid Engine
# The mark of the end, whole or not at all. Without it the job counts as killed.
echo "$code" >"$marks/$JOB_ID.part" && mv "$marks/$JOB_ID.part" "$marks/$JOB_ID.exit" || exit 1
exit "$code"
