"""The checksum of what lies on a device is that of the same bytes on the host."""

import numpy as np
import pytest
from shardwise.files.checksum import PieceChecksum
from shardwise.numerics.xxh3 import DeviceChecksum

from tests.gpu.conftest import needs_gpu

CUTS = [
    (5_000_000, 2**20, 2**20, 2**20),
    (5_000_000, 700_003, 100_001, 123_457),  # rows whose last piece is short, at odd bytes
    (3_000_000, 2**20, 2**20, 300_000),  # several batches a piece
    (241 * 300, 241, 241, 241 * 7),  # hardly long enough
    (100_000, 200, 200, 999),  # too short: all for the host
    (2**20 + 17, 2**20, 2**20, 2**20 + 17),  # a short rest
]


@needs_gpu
@pytest.mark.parametrize(("total", "row", "piece", "batch"), CUTS)
def test_the_checksum_on_a_device_is_the_hosts(cupy, total, row, piece, batch):
    """For any rows, pieces and batches, at any address."""
    raw = np.random.default_rng(total).integers(0, 256, total, np.uint8)
    expected, checksum = (PieceChecksum(total, row, piece) for _ in range(2))
    expected.update(0, raw)
    there = cupy.empty(total + 3, cupy.uint8)[3:]
    there.set(raw)
    device = DeviceChecksum(cupy, checksum)
    for low in range(0, total, batch):
        for own, offset, part in device.update(low, there[low : low + batch]):
            own.update(offset, part.get())
    device.finish()
    assert checksum.hexdigest() == expected.hexdigest()
