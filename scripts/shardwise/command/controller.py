"""A job that runs Snakemake, so that a run outlives the login node: `shardwise submit --job`.

If it is cancelled, or its run time is nearly up, Snakemake gets a Ctrl-C and cancels its jobs.
"""

import os
import signal
import sys

from shardwise.command.runs import begin, take_log
from shardwise.errors import TryAgain, explain

# The signals of scancel, of `submit` before the limit of Slurm, of qdel, of s_rt of Grid Engine.
_CANCEL = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGUSR1)
_LOOK_SECONDS = 1.0


def control(line: list[str]) -> int:
    """Run Snakemake; return its exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _CANCEL)  # each is pending until it is waited for
    # Otherwise the jobs that Snakemake submits would inherit the size of this one.
    run = begin(
        line, env={k: v for k, v in os.environ.items() if k == "SLURM_CONF" or k[:6] != "SLURM_"}
    )
    cancelled = False
    while (code := run.poll()) is None:
        cancelled = bool(signal.sigtimedwait(_CANCEL, _LOOK_SECONDS)) or cancelled
        if cancelled:
            # Again at each look: while a SIGTERM of Slurm is pending in Snakemake's main thread,
            # another thread gets the SIGINT, and then the main thread may sleep on.
            run.send_signal(signal.SIGINT)
    return code


if __name__ == "__main__":
    try:
        lock = take_log()
    except TryAgain as error:
        sys.exit(explain(error)[0])
    sys.exit(control(sys.argv[1:]))
