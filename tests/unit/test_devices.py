"""Which cupy a machine gets."""

import pytest
from shardwise import devices


@pytest.mark.parametrize(
    ("driver", "client", "extra"),
    [
        (12040, None, "12"),
        (13000, None, "13"),
        (14010, None, "13"),  # newer drivers run what is built for older ones
        (11080, None, "none"),
        (None, "/usr/bin/sbatch", "12"),
        (None, None, "none"),
    ],
)
def test_cupy_follows_the_driver_or_the_schedulers_client(
    monkeypatch: pytest.MonkeyPatch, driver: int | None, client: str | None, extra: str
) -> None:
    """The driver's own CUDA version; on a login node the older one; elsewhere none."""
    monkeypatch.setattr(devices, "driver_cuda_version", lambda: driver)
    monkeypatch.setattr(devices.shutil, "which", lambda name: client)
    assert devices.cuda_extra() == extra
