"""Child processes: how they end, and the end of whatever they leave behind."""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Collection

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>

_REAP_SECONDS = 5.0  # for killed processes; one that hangs in the kernel is left alone
_POLL_SECONDS = 0.01


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
    """Have the kernel send this process a signal when its parent ends.

    ``parent`` is the parent's process number; if that has ended already, this process exits now.
    """
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
        time.sleep(_POLL_SECONDS)


def children() -> set[int]:
    """The child processes of this one."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # raises if there is none
        import psutil  # here: most processes have none

        return {child.pid for child in psutil.Process().children()}
    return set()
