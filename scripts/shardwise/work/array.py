"""An array job of the scheduler, whose tasks are workers: submitted and waited for."""

import logging
import re
import shlex
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from contextlib import suppress
from pathlib import Path

from shardwise.errors import InputError, TryAgain
from shardwise.host import SCRIPTS
from shardwise.plan.plan import Plan
from shardwise.processes import contain
from shardwise.records import failures
from shardwise.records.store import Store
from shardwise.units import MIB
from shardwise.work import claims, schedulers
from shardwise.work.schedulers import QueueFull

log = logging.getLogger(__name__)

MOST_TASKS = 1000  # of an array, by default: each costs the scheduler work, and a start of Python

_LOOK_SECONDS = 0.5
_ASK_SECONDS = 15.0
_LOOKS = 20.0  # pause after a look at the results, in multiples of the time it took
_GRACE_SECONDS = 5.0  # for the scheduler's client to end


def submit(plan: Plan, options: Namespace, name: str, tasks: int | None = None) -> None:
    """Submit the array of a round, and wait for its end; for a full queue, one of half the size."""
    tasks = tasks or claims.load(plan, name).workers
    # No name is used twice: what cancels a refused submission must not end the next one.
    job = f"sw-{name.replace('/', '-')}-{tasks}"
    folder = plan.results.array_folder(failures.this_run())
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{job}.sh"
    file.write_text(script(plan, options, name, folder.absolute() / job))
    words = _command(options, job, tasks, str(file))
    schedulers.need(words[0])
    schedulers.remember(plan.results, options.scheduler, job)
    log.info("%s", shlex.join(words))
    with tempfile.TemporaryFile("w+") as said:
        client = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        try:
            _follow(plan, options.scheduler, job, client)
        finally:
            # It may have been cut off, or have lost tasks: they must not meet the next round.
            if client.poll() != 0:
                schedulers.cancel(options.scheduler, job)
            contain.end([client], _GRACE_SECONDS)
        code = client.wait()
        said.seek(0)
        text = said.read()
    if not re.search(r"^\d", text, re.MULTILINE):  # it has printed no number
        text = " ".join(text.split()) or f"{words[0]} ended with {code}"
        error = schedulers.refusal(text, code)
        if tasks == 1 or not isinstance(error, QueueFull):
            raise error
        log.warning("the scheduler takes fewer tasks (%s); asking for %d", error, tasks // 2)
        submit(plan, options, name, tasks // 2)


def _follow(plan: Plan, scheduler: str, job: str, client: subprocess.Popen[bytes]) -> None:
    """Wait for the client, but not longer than until all shards are whole or no task lives.

    The client would go on waiting for tasks that never start, or whose hosts are silent.
    """
    store, pause, asked = Store(plan), _LOOK_SECONDS, time.monotonic()
    heard = asked
    while client.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            client.wait(pause)  # a look at many shards takes long, and so does the pause
        began = time.monotonic()
        if not store.missing():
            return
        pause = max(_LOOK_SECONDS, _LOOKS * (time.monotonic() - began))
        if began - asked > _ASK_SECONDS:
            asked = began
            try:
                heard = began if schedulers.living(scheduler, [job], stuck=False) else heard
            except (TryAgain, InputError, OSError):  # after that, hosts seem silent for a while
                heard = began
            if began - heard >= schedulers.UNHEARD_SECONDS:
                log.warning("the remaining tasks are given up: no host works on them")
                return


def _command(options: Namespace, name: str, tasks: int, file: str) -> list[str]:
    """The command that submits an array, prints its number, and waits for its end."""
    asked, limit = options.job or (), options.array_limit
    if options.scheduler == "uge":
        own = ["-sync", "y", "-t", f"1-{tasks}", *(["-tc", str(limit)] if limit else [])]
        return [*schedulers.submission(name, "/dev/null"), *own, *asked, file]
    own = ["--parsable", "--wait", f"--job-name={name}", f"--comment={name}"]
    own.append(f"--array=1-{tasks}" + (f"%{limit}" if limit else ""))
    return ["sbatch", *asked, *own, "--output=/dev/null", "--error=/dev/null", file]


def script(plan: Plan, options: Namespace, name: str, log_name: Path) -> str:
    """The batch script that each task of a round runs."""
    command = [sys.executable, str(SCRIPTS / "work.py"), f"--plan={plan.results.plan}"]
    command += [f"--round={name}", f"--mem-mb={(options.memory or 0) // MIB}"]
    command += [f"--run-time={options.run_time}"] if options.run_time else []
    return _TASK.format(
        log=shlex.quote(str(log_name)), setup=options.setup or "true", command=shlex.join(command)
    )


_TASK = """\
#!/bin/bash
# A task of an array: a worker, which claims and computes one shard after another.
exec >>{log}."${{SLURM_ARRAY_TASK_ID:-$SGE_TASK_ID}}".log 2>&1
{{
{setup}
}} || exit 75
exec {command}
"""
