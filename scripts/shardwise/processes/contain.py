"""Run code that may do anything in a child process, and end whatever it leaves behind.

A user's function may end its process, leave threads and processes, change the working directory,
or close files that are not its own. In a child process with its own session that harms nobody else.
The result comes back through shared memory, which survives all of this.
"""

import contextlib
import ctypes
import json
import mmap
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from shardwise.errors import Terminated

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>

_RESULT_BYTES = 1 << 22
_GRACE_SECONDS = 10.0  # for a child to clean up after SIGTERM, before it is killed
_REAP_SECONDS = 5.0  # for killed processes; one that hangs in the kernel is left alone
_POLL_SECONDS = 0.01


@dataclass(frozen=True)
class Ending:
    """How a child has ended."""

    result: Any  # of the work; None if the process ended before it had one
    status: int  # exit code, or minus the signal's number


def words(status: int) -> str:
    """How a process ended before its work was done, from its `Ending.status`."""
    if status >= 0:
        return f"ended its process with os._exit({status}) or the like"
    name = {int(number): number.name for number in signal.Signals}.get(-status, "real-time")
    hint = "; out of host memory?" if status == -signal.SIGKILL else ""
    return f"was killed by signal {-status} ({name}{hint})"


def run(work: Callable[[], Any]) -> Ending:
    """Run some work in a child process, and end it with everything that it has started.

    The work must not raise, and must return something that JSON writes in 4 MiB at most. This
    process must have no other threads. What the child prints goes to stderr.
    """
    adopt()
    others = children()
    board = mmap.mmap(-1, _RESULT_BYTES)
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    # Blocked until both processes are ready: else a child could outlive a parent that ends now.
    held = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        child = os.fork()
    except OSError:  # no more processes are allowed: this one must still get signals
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held)
        raise
    if child == 0:
        _work(work, board, parent, held)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except BaseException:  # Ctrl-C or SIGTERM: let the child remove its temporary files
        _signal(child, signal.SIGTERM)
        end = time.monotonic() + _GRACE_SECONDS
        with contextlib.suppress(ChildProcessError):  # it has just ended by itself
            while not os.waitpid(child, os.WNOHANG)[0] and time.monotonic() < end:
                time.sleep(_POLL_SECONDS)
        raise
    finally:
        sweep(spare=others)
    result = None
    with contextlib.suppress(ValueError):
        result = json.loads(board[:].rstrip(b"\0"))
    return Ending(result, status)


def _work(work: Callable[[], Any], board: mmap.mmap, parent: int, held: Collection[int]) -> None:
    """Do the work in the child, then end the child without waiting for threads or processes."""
    code = 1
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held)
        os.setsid()
        end_with_parent(parent=parent)
        with contextlib.suppress(OSError):
            os.dup2(2, 1)
        result = json.dumps(work()).encode()
        board[: len(result)] = result
        code = 0
    except Terminated:
        pass  # a signal told it to end
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


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
            _signal(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
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


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
