"""Leases of real GPUs: tasks next to programs that fill the memory."""

import json
import subprocess
import sys

import pytest
from shardwise.devices import nvml

from tests.gpu.conftest import needs_gpu

pytestmark = needs_gpu

GIB = 2**30
TASK = """
import json, os, sys
from shardwise.devices import choose
from shardwise.errors import TryAgain
from shardwise.multiply import backend

choose.POLL_SECONDS = 0.1
given = {"take": 0, "limit": 120, "lease": True} | json.loads(sys.argv[1])
try:
    if given["lease"]:
        cupy, _ = backend.load_backend("cupy", given["take"], given["limit"])
    else:
        cupy = backend.array_module("cupy")
except TryAgain as error:
    print(error)
    sys.exit(error.exit_code)
room = cupy.empty(given["take"], "u1")
print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def start(environment):
    """Start tasks that take some bytes of a device; those that still live are killed in the end.

    Without a lease a task uses the first GPU that CUDA sees, as any other program would. With
    `stays` it lives until `communicate` closes its input. It prints the UUID of its GPU.
    """
    tasks = []

    def started(visible=None, stays=False, **given):
        own = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        task = subprocess.Popen(
            [sys.executable, "-c", TASK, json.dumps(given)], env=environment | own, text=True,
            stdin=subprocess.PIPE if stays else subprocess.DEVNULL, stdout=subprocess.PIPE,
        )  # fmt: skip
        tasks.append(task)
        return task

    yield started
    for task in tasks:
        with task:
            task.kill()


def test_a_gpu_that_another_program_fills_is_left_alone(start):
    """Tasks take other GPUs; a task that sees only this one waits, then gets it or ends with 75."""
    here = nvml.present()
    uuid = here[0].uuid
    room = here[0].free - here[0].memory // 20
    other = start(visible=uuid, stays=True, lease=False, take=room)
    assert other.stdout.readline().strip() == uuid
    if len(here) > 1:
        tasks = [start(take=GIB) for _ in here[1:]]
        assert uuid not in {task.communicate()[0].strip() for task in tasks}
    refused = start(visible=uuid, take=GIB, limit=1)
    said = refused.communicate()[0]
    assert refused.returncode == 75
    assert "no device became free" in said
    assert "fill it" in said
    waiting = start(visible=uuid, take=GIB)
    other.communicate()
    assert waiting.communicate()[0].strip() == uuid
