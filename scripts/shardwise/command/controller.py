"""A job that runs Snakemake, so that a run outlives the login node, and even the job's run time.

`shardwise submit --job` submits it. If it is cancelled (SIGTERM of scancel, SIGUSR2 of qdel),
Snakemake gets a Ctrl-C and cancels its jobs. If its run time is nearly up (SIGUSR1, before the
limit of Slurm, at ``s_rt`` of Grid Engine), Snakemake is killed, its jobs live on, and this job is
queued again. Started again, it waits for jobs that still live.
"""

import os
import signal
import subprocess
import sys

from shardwise import host
from shardwise.command.runs import begin, take_log
from shardwise.errors import TryAgain, explain, tell

_CANCEL = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
_HEARD = (*_CANCEL, signal.SIGUSR1)

_QUEUE_AGAIN = 99
"""The exit code that makes Grid Engine requeue a job."""

_LOOK_SECONDS = 1.0
_LOOK_AGAIN_SECONDS = 60.0
_REQUEUE_SECONDS = 60.0  # most time until Slurm ends a job that it requeues


def control(line: list[str]) -> int:
    """Run Snakemake, again while jobs of an earlier one live; return the exit code of the job."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)  # each is pending until `_heard` takes it
    while True:
        code, last = _call(line)
        if last is None and code == TryAgain.exit_code and host.restarted():
            # Jobs of the previous Snakemake still live.
            last = _heard(_LOOK_AGAIN_SECONDS)
            if last is None:
                continue
        if last == signal.SIGUSR1:
            return _queue_again()
        return code


def _call(line: list[str]) -> tuple[int, int | None]:
    """Run Snakemake; its exit code, and the signal that ended it, None if it ended by itself."""
    # Otherwise the jobs that it submits would inherit its own size.
    env = {k: v for k, v in os.environ.items() if k == "SLURM_CONF" or k[:6] != "SLURM_"}
    run = begin(line, env=env)
    last = None
    while (code := run.poll()) is None:
        heard = _heard(_LOOK_SECONDS)
        last = last or heard
        if last == signal.SIGUSR1:
            os.killpg(run.pid, signal.SIGKILL)
        elif last:
            # Again at each look: while a SIGTERM of Slurm is pending in Snakemake's main thread,
            # another thread gets the SIGINT, and then the main thread may sleep on.
            run.send_signal(signal.SIGINT)
    if code == -signal.SIGKILL and not last:
        tell(
            "shardwise: snakemake was killed (signal 9), perhaps out of memory; its jobs go on. "
            "Once these have ended, give the same command again"
        )
    return code, last


def _heard(seconds: float) -> int | None:
    """The next signal to this job, if one comes in time."""
    found = signal.sigtimedwait(_HEARD, seconds)
    return found and found.si_signo


def _queue_again() -> int:
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return _QUEUE_AGAIN
    if subprocess.run(["scontrol", "requeue", job], check=False).returncode == 0:
        _heard(_REQUEUE_SECONDS)
    return TryAgain.exit_code


if __name__ == "__main__":
    try:
        lock = take_log()
    except TryAgain as error:
        if not host.restarted():  # else the lock may be this job's own, left by a node that died
            sys.exit(explain(error)[0])
    sys.exit(control(sys.argv[1:]))
