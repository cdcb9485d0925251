"""What check_run.py says of runs, good and bad; no GPU is needed."""

import numpy as np
import pytest

from tests.gpu.check_run import device_problems, sum_problems

DEVICES = ["GPU-a", "GPU-b"]


def receipt(shard, uuid, started, finished, backend="cupy", process=None):
    """What of a receipt matters here; by default of a task of its own."""
    times = {"started": started, "finished": finished}
    where = {"device": {"uuid": uuid}, "node": "n", "process": process or int(shard)}
    return {"shard": shard, "backend": backend, **where, **times}


GOOD = [
    receipt("0", "GPU-a", 0.0, 2.0),
    receipt("1", "GPU-b", 0.5, 3.0),
    receipt("2", "GPU-a", 2.1, 4.0),
]


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ([], None),
        ([receipt("3", "GPU-b", 2.0, 4.0, process=1)], None),  # a process may read ahead
        ([receipt("3", "GPU-b", 2.0, 4.0)], "GPU-b had shards 1 and 3 at once"),
        ([receipt("3", "GPU-c", 2.0, 4.0)], "GPU-c is not a GPU of this machine"),
        ([receipt("3", "CPU", 2.0, 4.0, "numpy")], "computed by numpy, not cupy"),
    ],
)
def test_a_bad_shard_is_named(more, problem):
    """An overlap, a foreign device and another backend are each found, and nothing else."""
    problems = device_problems([*GOOD, *more], DEVICES)
    assert len(problems) == (problem is not None)
    assert problem is None or problem in problems[0]


def test_an_idle_device_is_named():
    """A GPU of the machine that computed nothing is a problem."""
    assert device_problems(GOOD, [*DEVICES, "GPU-c"]) == ["GPU-c computed nothing"]


def test_an_exact_sum_is_compared_to_the_bit():
    """The last bit of one element is enough."""
    stack = np.arange(24.0).reshape(2, 3, 4)
    total = sum(a.T @ a for a in stack)
    assert sum_problems(total, stack, "A.T @ A", exact=True) == []
    total[1, 2] = np.nextafter(total[1, 2], 0)
    assert len(sum_problems(total, stack, "A.T @ A", exact=True)) == 1


def test_a_rounded_sum_may_be_off_by_rounding_only():
    """float32 products pass; inputs cut to the 10 bits of tf32 do not, nor does one wrong sum."""
    stack = np.random.default_rng(0).standard_normal((3, 256, 256), np.float32)
    total = sum((a @ a).astype(np.float64) for a in stack)
    assert sum_problems(total, stack, "A @ A", exact=False) == []
    cut = (stack.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    coarse = sum((a @ a).astype(np.float64) for a in cut)
    assert sum_problems(coarse, stack, "A @ A", exact=False)
    total[5, 7] += 0.1
    assert "1 elements" in sum_problems(total, stack, "A @ A", exact=False)[0]
