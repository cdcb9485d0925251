"""A user's own function: the same tests on NumPy and, if there is a GPU, on cupy."""

import numpy as np
import pytest
from shardwise.errors import DeviceFailed
from shardwise.multiply import job

from tests import factories
from tests.gpu.conftest import needs_gpu


def write(folder, line):
    """The spec of a function of one line."""
    path = folder / "mine.py"
    path.write_text(f"import numpy as np\ndef own(xp, block):\n    {line}\n")
    return f"{path}:own"


@pytest.mark.parametrize("keep", ["products", "sum"])
@pytest.mark.parametrize("dtype", ["float32", "complex64", "int16"])
def test_a_function_computes_on_the_backend(tmp_path, backend, keep, dtype):
    """It gets the backend's array module and arrays; results are exact."""
    line = "assert type(block) is xp.ndarray; return xp.cumsum(block, axis=1)[:, ::2]"
    left = factories.stack((7, 5, 3), dtype)
    over = {"product": write(tmp_path, line), "backend": backend, "keep": keep, "shards": 2}
    made = factories.computed(factories.plan(tmp_path, left, **over))
    expected = np.cumsum(left.astype(made.problem.sum_dtype), axis=1)[:, ::2]
    if keep == "sum":
        expected = np.stack([expected[:3].sum(axis=0), expected[3:].sum(axis=0)])
    np.testing.assert_array_equal(factories.results(made), expected)


@needs_gpu
def test_lack_of_device_memory_is_no_fault_of_the_function(tmp_path):
    """It can be tried again, on another device."""
    line = "return block if xp is np else xp.ones((10**7, 10**7))"
    over = {"product": write(tmp_path, line), "backend": "cupy", "shards": 1}
    made = factories.copied(factories.plan(tmp_path, factories.stack((2, 3, 3)), **over))
    with pytest.raises(DeviceFailed, match=r"Out of memory .*GPU-") as failed:
        job.run_shard(made, "00000")
    assert not failed.value.suspect
