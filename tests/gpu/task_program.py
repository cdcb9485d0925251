"""A task on a real GPU, as test_leases_gpu.py starts it: takes a device and memory, ends.

Its only argument is JSON: `take`, bytes of device memory to hold; `limit`, seconds to wait for a
device. If `lease` is false it uses the first GPU that CUDA sees, as any other program would. It
prints the UUID of its GPU, then waits until its input is closed.
"""

import json
import sys

from shardwise.devices import choose, wait
from shardwise.errors import TryAgain
from shardwise.multiply import backend


def main() -> None:
    """Take a device and memory as the argument says, and hold them until the input is closed."""
    given = {"take": 0, "limit": 120, "lease": True} | json.loads(sys.argv[1])
    wait.POLL_SECONDS = 0.1
    try:
        if given["lease"]:
            cupy, _ = backend.load_backend("cupy", given["take"], given["limit"])
        else:
            cupy = backend.array_module("cupy")
    except TryAgain as error:
        say(str(error))
        sys.exit(error.exit_code)
    room = cupy.empty(given["take"], "u1")
    say(choose.cuda_uuid(cupy))
    sys.stdin.read()
    assert room.size == given["take"]


def say(line: str) -> None:
    """Print one line for the test that started this program."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
