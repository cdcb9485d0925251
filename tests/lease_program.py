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
import sys
import time

from shardwise.devices import choose, nvml
from shardwise.errors import TryAgain

CHILD = """
import os, sys, time
hold, records, uuid, began = sys.argv[1:]
time.sleep(float(hold))
os.write(int(records), f"{uuid} {began} {time.monotonic()}\\n".encode())
"""


def main() -> None:
    """Take a device, hold it, and end as the argument says."""
    given = {"limit": 60, "hold": 0, "end": "exit", "uid": None, "records": os.devnull}
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
        uuid = choose.take(50, given["limit"], lambda: found, {}).uuid
    except TryAgain as error:
        os.write(1, f"{error}\n".encode())
        sys.exit(error.exit_code)
    os.write(1, f"taken {uuid}\n".encode())
    records = os.open(given["records"], os.O_WRONLY | os.O_APPEND)
    os.set_inheritable(records, True)
    words = [given["hold"], records, uuid, time.monotonic()]
    if given["end"] == "orphan":  # it inherits the lease; `subprocess` would close all files
        line = [sys.executable, "-SE", "-c", CHILD, *map(str, words)]
        os.spawnv(os.P_NOWAIT, sys.executable, line)
    else:
        time.sleep(given["hold"])
        os.write(records, f"{uuid} {words[-1]} {time.monotonic()}\n".encode())
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


if __name__ == "__main__":
    main()
