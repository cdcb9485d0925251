"""The script that every task of an array runs."""

import shlex
import sys
from pathlib import Path

from shardwise.dispatch.schedulers.common import Array
from shardwise.plan.plan import Plan

SCRIPTS = Path(__file__).parents[2]

# 99 and 100 would mean something to Grid Engine.
_TASK = """\
#!/bin/bash
# A task of an array: the shard whose number in the plan follows from the task's index.
{find_number}
printf -v shard %0{width}d "$number"
exec >{logs}/"$shard".log 2>&1
mark={array}."$shard"
rm -f "$mark"
[ -e {array}.number ] || echo "$job" >{array}.number
# A mark of the end where the task fails, whole or not at all; of success the receipt speaks.
trap 'code=$?
[ $code = 0 ] || {{ echo $code >"$mark.part" && mv "$mark.part" "$mark"; }}
case $code in 99 | 100) code=1 ;; esac
exit $code' EXIT
{setup}\
{command} --array-task --array-first $((number - index))
"""

_SETUP = """\
{{
{line}
}} || {{
  code=$?
  echo "$(date '+%F %T,000') ERROR the profile's set-up line (precommand) ended with $code"
  exit 75
}}
"""


def task_script(plan: Plan, array: Array, find_number: str, setup: str, memory: int | None) -> str:
    """The script of every task of an array.

    Parameters
    ----------
    find_number
        Shell words that set ``index``, ``number`` (of the shard) and ``job``.
    setup
        The site's set-up line, or empty.
    memory
        MiB of host memory, or None.
    """
    command = [sys.executable, str(SCRIPTS / "multiply.py"), f"--plan={plan.results.plan}"]
    command += [f"--mem-mb={memory}"] if memory else []
    return _TASK.format(
        find_number=find_number,
        width=len(next(iter(plan.shards))),
        logs=shlex.quote(str(plan.results.log("multiply", "-").parent.absolute())),
        array=shlex.quote(str(plan.results.array_folder(array.run).absolute() / array.name)),
        setup=_SETUP.format(line=setup) if setup else "",
        command=shlex.join(command),
    )
