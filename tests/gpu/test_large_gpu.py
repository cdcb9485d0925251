"""One large matrix through a GPU in one batch: right, proven, and within the model of memory."""

import numpy as np
import pytest
from shardwise.multiply import job
from shardwise.multiply.backend import load_backend
from shardwise.plan import memory

from tests import factories
from tests.gpu.conftest import needs_gpu

ROWS = 1000
"""Rows that are written, or compared, at once."""


def write(path, side):
    """A matrix ``x_i + y_j`` of small whole numbers, whose products are exact in float32."""
    x, y = (np.arange(side) % 3 - 1).astype("f4"), (np.arange(side) % 2).astype("f4")
    matrix = np.lib.format.open_memmap(path, "w+", "f4", (1, side, side))
    for low in range(0, side, ROWS):
        matrix[0, low : low + ROWS] = x[low : low + ROWS, np.newaxis] + y
    return x.astype("f8"), y.astype("f8")


def expected(product, x, y, rows):
    """Some rows of the product."""
    if product == "A @ A":
        own = x[rows, np.newaxis]
        return own * x.sum() + len(x) * own * y + x @ y + y * y.sum()
    own = y[rows, np.newaxis]  # A.T @ A
    return x @ x + (own + y) * x.sum() + len(x) * own * y


@needs_gpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("side", "product", "keep"), [
    (24_001, "A @ A", "products"),  # more than 2 GiB, and rows that are not aligned
    (24_000, "A.T @ A", "products"),  # a rank-k update, whose other half is mirrored
    (24_000, "A @ A", "sum"),
    *(factories.nightly(40_000, "A @ A", keep) for keep in ("products", "sum")),
])  # fmt: skip
def test_a_large_matrix_is_one_batch(tmp_path, side, product, keep):
    """All elements are right, and the device has held no more than the plan says."""
    xp, _ = load_backend("cupy")
    x, y = write(tmp_path / "a.npy", side)
    over = {"input": str(tmp_path / "a.npy"), "materialize": False, "shards": 1}
    made = factories.plan(tmp_path, product=product, keep=keep, backend="cupy", **over)
    needed = made.shards["00000"].device_memory
    if xp.cuda.Device().mem_info[1] < needed:
        pytest.skip(f"this device has less than {needed} bytes")
    assert memory.ladder(made.problem, 1, cuda=True)[0] == (1, 1)
    pool = xp.get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.total_bytes()
    job.run_shard(made, "00000")
    assert pool.total_bytes() - before <= needed - memory.DEVICE_BYTES
    assert factories.receipt(made).witness is not None
    found = np.load(factories.file(made, "product", "00000"), mmap_mode="r")
    for low in range(0, side, ROWS):
        rows = slice(low, low + ROWS)
        np.testing.assert_array_equal(found[0, rows], expected(product, x, y, rows))
    pool.free_all_blocks()
