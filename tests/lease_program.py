"""The task that the tests of leases start: it takes one of some fake devices, holds it, and ends.

Its one argument is a JSON object. `uuids`: the devices. `limit`, `hold`: seconds to wait for a
device, and to compute. `records`: a file; at its end the task appends the device and the times of
its begin and end. `uid`: the user to run as. `end`: `exit`; `stdin` (exit once stdin is closed);
`kill` (SIGKILL to itself); `orphan` (the same while a child computes). `tasks`: a list of objects
with these keys, each run in a process of its own; this process waits for all of them.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

from shardwise.devices import choose, nvml
from shardwise.errors import TryAgain

CHILD = """
import os, sys, time
time.sleep(float(sys.argv[1]))
os.write(int(sys.argv[2]), f"{sys.argv[3]} {sys.argv[4]} {time.monotonic()}\\n".encode())
"""


def main() -> None:
    """Take a device, hold it, and end as the argument says."""
    given = {"limit": 60, "hold": 0, "end": "exit", "uid": None, "records": None}
    given |= json.loads(sys.argv[1])
    if "tasks" in given and not becomes(given):
        return
    if given["uid"] is not None:
        os.setgroups([])
        os.setgid(given["uid"])
        os.setuid(given["uid"])
    choose.POLL_SECONDS = 0.02
    found = [nvml.Device(u, "Fake", i, 100, 100) for i, u in enumerate(given["uuids"])]
    try:
        taken = choose.take(50, given["limit"], lambda: found, {})
    except TryAgain as error:
        say(f"{error}")
        sys.exit(error.exit_code)
    began = time.monotonic()
    say(f"taken {taken.uuid}")
    compute(given, taken.uuid, began)
    if given["end"] == "stdin":
        sys.stdin.read()
    if given["end"] in ("kill", "orphan"):
        os.kill(os.getpid(), signal.SIGKILL)


def becomes(given: dict) -> bool:
    """Fork a process for each task: True in each child, False in the parent once all have ended."""
    for task in given["tasks"]:
        if os.fork() == 0:
            given |= task
            return True
    with contextlib.suppress(ChildProcessError):
        while os.wait():
            pass
    return False


def compute(given: dict, uuid: str, began: float) -> None:
    """Hold the device for the given time, then write the record; an orphan's child does both."""
    if given["records"] is None:
        time.sleep(given["hold"])
        return
    records = os.open(given["records"], os.O_WRONLY | os.O_APPEND)
    if given["end"] == "orphan":
        words = [str(word) for word in (given["hold"], records, uuid, began)]
        os.set_inheritable(records, True)
        line = [sys.executable, "-SE", "-c", CHILD, *words]
        subprocess.Popen(line, stdout=subprocess.DEVNULL, close_fds=False)
        return
    time.sleep(given["hold"])
    os.write(records, f"{uuid} {began} {time.monotonic()}\n".encode())


def say(line: str) -> None:
    """Write one line to the process that started this task."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
