"""The script of an array job."""

import logging
import shlex
import sys
from pathlib import Path

from shardwise.dispatch.schedulers.common import Array
from shardwise.plan.plan import Plan

log = logging.getLogger(__name__)
_SCRIPTS = Path(__file__).parents[2]


def script(plan: Plan, array: Array, number: str, setup: str, memory: int | None) -> str:
    """The script of every task of an array.

    Parameters
    ----------
    number
        Shell words that set ``index``, ``number`` (of the shard) and ``job``.
    setup
        The site's set-up line, or empty.
    memory
        MiB of host memory, or None.
    """
    folder = plan.results.array_folder(array.run).absolute()
    width = len(next(iter(plan.shards)))
    logs = shlex.quote(str(plan.results.log("multiply", "-").parent.absolute()))
    own = shlex.quote(str(folder / array.name))
    command = [sys.executable, str(_SCRIPTS / "multiply.py"), f"--plan={plan.results.plan}"]
    command += [f"--mem-mb={memory}"] if memory else []
    ready = f"""\
{{
{setup}
}} || {{
  code=$?
  echo "$(date '+%F %T,000') ERROR the profile's set-up line (precommand) ended with $code"
  exit 75
}}
"""
    return f"""\
#!/bin/bash
# A task of an array: the shard whose number in the plan follows from the task's index.
{number}
printf -v shard %0{width}d "$number"
exec >{logs}/"$shard".log 2>&1
mark={own}."$shard"
rm -f "$mark"
[ -e {own}.number ] || echo "$job" >{own}.number
# A mark of the end where the task fails, whole or not at all; of success the receipt speaks.
# 99 and 100 would mean something to Grid Engine.
trap 'code=$?
[ $code = 0 ] || {{ echo $code >"$mark.part" && mv "$mark.part" "$mark"; }}
case $code in 99 | 100) code=1 ;; esac
exit $code' EXIT
{ready if setup else ""}\
{shlex.join(command)} --array-task --array-first $((number - index))
"""
