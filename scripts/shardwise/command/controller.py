"""A job whose work is Snakemake: a run that outlives the login node, and its own run time.

`shardwise submit --job` submits it. Where it is cancelled (SIGTERM of scancel, SIGUSR2 of qdel),
Snakemake gets a Ctrl-C and cancels its jobs. Where its run time is nearly up (SIGUSR1, before the
limit of Slurm, at ``s_rt`` of Grid Engine), Snakemake is killed, its jobs live on, and this job is
queued again. Started again, it waits for jobs that still live.
"""

import os
import signal
import subprocess
import sys
import threading
from typing import Any

from shardwise.command.folder import take_log
from shardwise.errors import TryAgain, explain, tell
from shardwise.processes import contain

_QUEUE_AGAIN = 99
"""The exit code by which Grid Engine takes a job back into its queue."""

_LOOK_AGAIN_SECONDS = 60.0
_REQUEUE_SECONDS = 60.0  # until Slurm ends a job that it takes back


class _Controller:
    """Snakemake, and the signals of its job."""

    def __init__(self, line: list[str]) -> None:
        # The job's own size must not become that of the jobs that it submits.
        kept = {k: v for k, v in os.environ.items() if k == "SLURM_CONF" or k[:6] != "SLURM_"}
        self._line, self._env = line, kept
        self._running: subprocess.Popen[bytes] | None = None
        self._cancelled = self._late = False
        self._woken = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
            signal.signal(number, self._cancel)
        signal.signal(signal.SIGUSR1, self._leave)

    def _cancel(self, *_: Any) -> None:
        if self._running and not self._cancelled:
            self._running.send_signal(signal.SIGINT)
        self._cancelled = True
        self._woken.set()

    def _leave(self, *_: Any) -> None:
        if self._running and not self._cancelled:
            os.killpg(self._running.pid, signal.SIGKILL)
        self._late = True
        self._woken.set()

    def run(self) -> int:
        """The exit code of the job."""
        while True:
            code = self._call()
            if self._cancelled:
                return code
            if self._late:
                return self._queue_again()
            if not (_restarted() and code == TryAgain.exit_code):
                return code
            self._woken.wait(_LOOK_AGAIN_SECONDS)  # jobs of the Snakemake before still live

    def _call(self) -> int:
        """Run Snakemake in a session of its own: Grid Engine's signals are for this process."""
        if self._cancelled or self._late:
            return TryAgain.exit_code
        self._running = subprocess.Popen(
            self._line, env=self._env, start_new_session=True, stdin=subprocess.DEVNULL,
            preexec_fn=lambda: contain.end_with_parent(signal.SIGINT),  # noqa: PLW1509 - no threads
        )  # fmt: skip
        if self._cancelled or self._late:  # a signal came meanwhile
            os.killpg(self._running.pid, signal.SIGKILL)
        if (code := self._running.wait()) == -signal.SIGKILL and not (
            self._late or self._cancelled
        ):
            tell(
                "shardwise: snakemake was killed (signal 9), perhaps for its memory; its jobs go "
                "on. Once they have ended, give the same command again"
            )
        return code

    def _queue_again(self) -> int:
        job = os.environ.get("SLURM_JOB_ID")
        if job is None:
            return _QUEUE_AGAIN
        if subprocess.run(["scontrol", "requeue", job], check=False).returncode == 0:
            self._woken.clear()
            self._woken.wait(_REQUEUE_SECONDS)
        return TryAgain.exit_code


def _restarted() -> bool:
    """Whether the scheduler has taken this job back into its queue before."""
    again = os.environ.get("SLURM_RESTART_COUNT", "0") != "0"
    return again or os.environ.get("RESTARTED") == "1"


if __name__ == "__main__":
    try:
        lock = take_log()
    except TryAgain as error:
        if not _restarted():  # else it may be this job's own, left by a node that went down
            sys.exit(explain(error)[0])
    sys.exit(_Controller(sys.argv[1:]).run())
