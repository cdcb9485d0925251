"""One large matrix through a GPU in one batch: right, proven, and within the model of memory."""

import numpy as np
import pytest
from shardwise.multiply import job
from shardwise.plan import memory

from tests import factories
from tests.gpu.conftest import needs_gpu

ROWS = 1000  # that are written, or compared, at once


def write(path, side):
    """A matrix ``x_i + y_j`` of small whole numbers, whose products are exact in float32."""
    x, y = (np.arange(side) % 3 - 1).astype("f4"), (np.arange(side) % 2).astype("f4")
    matrix = np.lib.format.open_memmap(path, "w+", "f4", (1, side, side))
    for low in range(0, side, ROWS):
        matrix[0, low : low + ROWS] = x[low : low + ROWS, np.newaxis] + y
    return x.astype("f8"), y.astype("f8")


def expected(x, y, rows):
    """Some rows of A @ A."""
    own = x[rows, np.newaxis]
    return own * x.sum() + len(x) * own * y + x @ y + y * y.sum()


@needs_gpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("side", "keep"), [
    (24_001, "products"),  # more than 2 GiB, and rows that are not aligned
    (24_000, "sum"), factories.nightly(40_000, "products"), factories.nightly(40_000, "sum"),
])  # fmt: skip
def test_a_large_matrix_is_one_batch(cupy, tmp_path, side, keep):
    """All elements are right, and the device has held no more than the plan says."""
    x, y = write(tmp_path / "a.npy", side)
    over = {"input": str(tmp_path / "a.npy"), "materialize": False, "shards": 1}
    made = factories.plan(tmp_path, keep=keep, backend="cupy", **over)
    needed = made.shards["00000"].device_memory
    if cupy.cuda.Device().mem_info[1] < needed:
        pytest.skip(f"this device has less than {needed} bytes")
    assert memory.Budget(made.problem, made.settings, [range(1)]).ladder(cuda=True)[0] == (1, 1)
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.total_bytes()
    job.run_shard(made, "00000")
    assert pool.total_bytes() - before <= needed - memory.DEVICE_BYTES
    assert factories.receipt(made).witness is not None
    found = np.load(factories.file(made, "product", "00000"), mmap_mode="r")
    for low in range(0, side, ROWS):
        rows = slice(low, low + ROWS)
        np.testing.assert_array_equal(found[0, rows], expected(x, y, rows))
    pool.free_all_blocks()
