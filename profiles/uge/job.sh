#!/bin/bash
# What Grid Engine runs: SCRIPT is Snakemake's for one job, MARKS the folder of the run.
# The script is read in, not started, so that the site's set-up finds what this shell has defined.
script=$1 marks=$2
# Who has submitted this and got no answer finds its number here, although it may end at once.
echo "$JOB_ID" >"$marks/$JOB_NAME.number"
(. "$script")
code=$?
[ "$code" = 0 ] || code=1 # 99 and 100 would mean something to Grid Engine
# The mark of the end, whole or not at all. Without it the job counts as killed.
echo "$code" >"$marks/$JOB_ID.part" && mv "$marks/$JOB_ID.part" "$marks/$JOB_ID.exit" || exit 1
exit "$code"
