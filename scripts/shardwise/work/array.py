"""An array job of the scheduler, whose tasks are workers: submitted and waited for, round by round.

The scheduler's client waits for the last task of a round, unless all shards are whole or all tasks
are on hosts that do not respond. Progress is read from the results folder. The next round, for the
shards still missing, asks for more memory and time if the profile says so.
"""

import json
import logging
import re
import shlex
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shardwise.errors import InputError
from shardwise.host import SCRIPTS
from shardwise.plan.plan import Plan
from shardwise.processes import contain
from shardwise.records import failures
from shardwise.records.store import Store
from shardwise.work import claims, schedulers
from shardwise.work.grid_engine import GridEngine
from shardwise.work.schedulers import QueueFull
from shardwise.work.slurm import Slurm

log = logging.getLogger(__name__)

SITES = {"slurm": Slurm(), "uge": GridEngine()}
MOST_TASKS = 1000  # of an array, by default: each costs the scheduler work, and a start of Python

_LOOK_SECONDS = 0.5
_ASK_SECONDS = 15.0
_LOOKS = 20.0  # pause after a look at the results, in multiples of the time it took
_GRACE_SECONDS = 5.0  # for the scheduler's client to end
_FULL_SECONDS = 30.0


@dataclass(frozen=True)
class Request:
    """What the profile has tasks ask for, at the first and each further try."""

    scheduler: str  # ``slurm`` or ``uge``
    words: list[list[str]]  # for sbatch or qsub
    memory: list[int | None]  # MiB of host memory
    setup: str  # the site's set-up line, which each task runs first; empty if there is none


class Array:
    """Submits an array of the scheduler for each round, as the request in a file says.

    An array has at most this many tasks (None: one per shard, up to `MOST_TASKS`), of which at most
    ``limit`` run at once (None: as many as the scheduler allows).
    """

    def __init__(self, plan: Plan, path: Path | None, tasks: int | None, limit: int | None) -> None:
        if path is None:
            raise InputError(
                "an array needs --request, which snakemake writes under dispatch: array. By hand, "
                "use --dispatch pool or mpi, in a job of your own"
            )
        self._request = Request(**json.loads(path.read_text()))
        self.scheduler, self.retries = SITES[self._request.scheduler], len(self._request.words) - 1
        self.most = min(tasks or MOST_TASKS, self.scheduler.most_tasks())
        self._plan, self._limit, self._attempt = plan, limit, 0

    def run(self, name: str) -> None:
        """Submit the array for a round, and wait for its end."""
        results = self._plan.results
        tasks = claims.load(self._plan, name).workers
        job = "sw-" + name.replace("/", "-")
        folder = results.array_folder(failures.this_run())
        folder.mkdir(parents=True, exist_ok=True)
        script = folder / f"{job}.sh"
        script.write_text(self.script(name, folder.absolute() / job))
        schedulers.remember(results, self._request.scheduler, job)
        asked, code = self._request.words[self._attempt], None
        while code is None:
            try:
                words = self.scheduler.array(job, tasks, self._limit, asked, str(script))
                code = self._wait(job, words)
            except QueueFull as error:
                log.warning("the scheduler accepts no more tasks now (%s)", error)
                if tasks == 1:
                    time.sleep(_FULL_SECONDS)
                tasks = max(1, tasks // 2)
        self._attempt = min(self.retries, self._attempt + (code != 0))

    def script(self, round_name: str, log_name: Path) -> str:
        """The batch script that each task runs."""
        command = [sys.executable, str(SCRIPTS / "work.py"), f"--plan={self._plan.results.plan}"]
        command += [f"--round={round_name}"]
        if memory := self._request.memory[self._attempt]:
            command += [f"--mem-mb={memory}"]
        # A task under Slurm asks for its end itself.
        if seconds := GridEngine().run_time(self._request.words[self._attempt]):
            command += [f"--run-time={seconds}"]
        return _TASK.format(
            log=shlex.quote(str(log_name)), setup=self._request.setup or "true",
            command=shlex.join(command),
        )  # fmt: skip

    def _wait(self, job: str, words: list[str]) -> int:
        """Submit an array, and wait until it has ended or is no longer needed; its exit code."""
        log.info("%s", shlex.join(words))
        with tempfile.TemporaryFile("w+") as said:
            client = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
            try:
                self._follow(client, job)
            finally:
                # It may have been cut off, or have lost tasks: they must not meet the next round.
                if client.poll() != 0:
                    schedulers.cancel_detached(self.scheduler.cancel(job))
                contain.end([client], _GRACE_SECONDS)
            code = client.wait()
            said.seek(0)
            text = said.read()
        if not re.search(r"^\d", text, re.MULTILINE):  # it has printed no number
            text = " ".join(text.split()) or f"{words[0]} ended with {code}"
            raise schedulers.refusal(text, code)
        return code

    def _follow(self, client: subprocess.Popen[bytes], job: str) -> None:
        """Wait for the client, until all shards are whole or all tasks are stuck.

        The client itself would go on waiting for tasks that never start, or do not answer.
        """
        store, pause, asked, stuck = Store(self._plan), _LOOK_SECONDS, time.monotonic(), 0.0
        while client.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                client.wait(pause)  # a look at many shards takes long, and so does the pause
            began = time.monotonic()
            if not store.missing():
                return
            pause = max(_LOOK_SECONDS, _LOOKS * (time.monotonic() - began))
            if began - asked > _ASK_SECONDS:
                asked, why = began, self.scheduler.stuck(job)
                stuck = stuck or began if why else 0.0
                if why and began - stuck >= schedulers.UNHEARD_SECONDS:
                    log.warning("the remaining tasks are given up: %s", why)
                    return


_TASK = """\
#!/bin/bash
# A task of an array: a worker, which claims and computes one shard after another.
exec >>{log}."${{SLURM_ARRAY_TASK_ID:-$SGE_TASK_ID}}".log 2>&1
{{
{setup}
}} || exit 75
exec {command}
"""
