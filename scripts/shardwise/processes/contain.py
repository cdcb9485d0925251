"""Child processes: their environment, how they end, and the end of whatever they leave behind."""

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, MutableMapping

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>
_REAP_SECONDS = 5.0  # for killed processes; one that hangs in the kernel is left alone
# The number of ranks, in those that we started: whatever else they see, they start none.
RANKS_STARTED = "SHARDWISE_RANKS"
_STRAY = re.compile(
    # These filter or format what Slurm answers, or send it elsewhere.
    r"(SQUEUE|SCANCEL|SACCT)_.*|SLURM_TIME_FORMAT|(SLURM|SBATCH)_CLUSTERS"
    # These tell a rank about itself, and would mislead the ranks that it starts.
    r"|PMI_(RANK|SIZE|FD|ID|PORT|JOBID|SPAWNED)|PMIX_(RANK|NAMESPACE|SERVER_.*)"
    rf"|(OMPI|MV2)_COMM_WORLD_.*|SLURM_STEP_NUM_TASKS|{RANKS_STARTED}"
)


def without_stray(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """An environment without variables that mislead Slurm's commands, or make a process a rank."""
    return {name: text for name, text in environ.items() if not _STRAY.fullmatch(name)}


def clear_stray(environ: MutableMapping[str, str] = os.environ) -> None:
    """Remove these variables from this process, and so from all processes that it starts."""
    for name in environ.keys() - without_stray(environ).keys():
        del environ[name]


def words(status: int) -> str:
    """How a process ended before its work was done, from its exit code or minus the signal."""
    if status >= 0:
        return f"ended its process with os._exit({status}) or the like"
    name = {int(number): number.name for number in signal.Signals}.get(-status, "real-time")
    hint = "; out of host memory?" if status == -signal.SIGKILL else ""
    return f"was killed by signal {-status} ({name}{hint})"


def end(processes: Collection[subprocess.Popen[bytes]], seconds: float) -> None:
    """Ask processes to end, and wait; those that have not ended after some seconds are killed."""
    for process in processes:
        process.terminate()
    last = time.monotonic() + seconds
    for process in processes:
        try:
            process.wait(max(0.0, last - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()


def adopt() -> None:
    """Become the parent of all descendants whose own parent ends; `sweep` ends them."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(number: int = signal.SIGKILL, parent: int | None = None) -> None:
    """Get a signal when the parent ends; exit now if process ``parent`` has ended already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if parent not in (None, os.getppid()):
        os._exit(1)


def sweep(spare: Collection[int] = ()) -> None:
    """Kill all children but ``spare``, and the descendants that become ours when those end."""
    end = time.monotonic() + _REAP_SECONDS
    while doomed := children().difference(spare):
        for pid in doomed:
            with contextlib.suppress(OSError):  # it has just ended, or is not ours to kill
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > end:
            break
        time.sleep(0.01)


def children() -> set[int]:
    """The child processes of this one."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # raises if there is none
        import psutil  # here: most processes have none

        return {child.pid for child in psutil.Process().children()}
    return set()
