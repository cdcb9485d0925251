"""A task on a real GPU, as test_leases_gpu.py starts it: takes a device, multiplies, ends.

Its one argument is JSON: `seconds` to multiply; `take` bytes of the device's memory; `limit`,
seconds to wait for it; `kill`, SIGKILL to itself in the middle; `records`, a file that gets a line
just before the end. With `lease` false it computes on the first GPU that CUDA sees, as any other
program would. It says which one that is, then goes on until its input is closed too.
"""

import json
import os
import signal
import sys
import threading
import time

from shardwise.devices import choose, wait
from shardwise.errors import TryAgain
from shardwise.multiply import backend

DIM = 4096


def main() -> None:
    """Live as the argument says."""
    given = {"seconds": 0, "take": 0, "limit": 120, "kill": False, "records": None, "lease": True}
    given |= json.loads(sys.argv[1])
    wait.POLL_SECONDS = 0.1
    try:
        if given["lease"]:
            cupy, _ = backend.load_backend("cupy", given["take"], given["limit"])
        else:
            cupy = backend.array_module("cupy")
    except TryAgain as error:
        say(str(error))
        sys.exit(error.exit_code)
    began, uuid = time.monotonic(), choose.cuda_uuid(cupy)
    room = cupy.empty(given["take"], "u1")
    matrix = cupy.ones((DIM, DIM), "float32")
    ended = threading.Thread(target=end, args=(given, uuid, began))
    ended.start()
    say(uuid)
    while ended.is_alive():
        for _ in range(20):
            matrix @ matrix
        cupy.cuda.Stream.null.synchronize()
    assert room.size == given["take"]


def end(given: dict, uuid: str, began: float) -> None:
    """Wait for the end while the other thread multiplies; write down what was used until then."""
    time.sleep(given["seconds"])
    sys.stdin.read()
    if given["records"] is not None:
        with open(given["records"], "a") as file:
            file.write(f"{uuid} {began} {time.monotonic()}\n")
    if given["kill"]:
        os.kill(os.getpid(), signal.SIGKILL)


def say(line: str) -> None:
    """One line to whoever started this."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
