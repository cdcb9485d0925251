"""Tasks that the tests of leases start: each takes one of some fake devices, holds it, and ends.

The one argument is a JSON object. `uuids`: the devices. `records`: a file to which each task
appends its device and the times of its begin and end. `tasks`: how long each holds its device in
seconds, and its end: `exit`, `kill` (SIGKILL to itself) or `orphan` (the same while a child
computes). Each runs in a process of its own; this process waits for all of them.
"""

import contextlib
import json
import os
import signal
import sys
import time

from shardwise.devices import choose, nvml

CHILD = """
import os, sys, time
hold, records, uuid, began = sys.argv[1:]
time.sleep(float(hold))
os.write(int(records), f"{uuid} {began} {time.monotonic()}\\n".encode())
"""


def compute(uuids: list[str], records: int, hold: float, end: str) -> None:
    """Take a device, hold it, and end."""
    choose.POLL_SECONDS = 0.02
    found = [nvml.Device(uuid, "Fake", i, 100, 100) for i, uuid in enumerate(uuids)]
    choose.present = lambda: found
    uuid = choose.take(50, 60, environ={}).uuid
    words = [hold, records, uuid, time.monotonic()]
    line = [sys.executable, "-SE", "-c", CHILD, *map(str, words)]
    # It inherits the lease; `subprocess` would close all files.
    os.spawnv(os.P_NOWAIT if end == "orphan" else os.P_WAIT, sys.executable, line)
    if end != "exit":
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    records = os.open(given["records"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.set_inheritable(records, True)
    for task in given["tasks"]:
        if os.fork() == 0:
            compute(given["uuids"], records, *task)
            os._exit(0)
    with contextlib.suppress(ChildProcessError):
        while os.wait():
            pass
