"""The same tests on NumPy and, if there is a GPU, on cupy."""

import os

import pytest
from shardwise.devices.choose import driver_cuda_version
from shardwise.multiply.backend import load_backend

from tests.factories import SCRIPTS

needs_gpu = pytest.mark.skipif(driver_cuda_version() is None, reason="no NVIDIA driver here")


@pytest.fixture(params=["numpy", pytest.param("cupy", marks=needs_gpu)])
def backend(request):
    """The name of an array module, as the config's key ``backend`` takes it."""
    return request.param


@pytest.fixture
def environment(tmp_path):
    """What tasks start with: all GPUs, leases of this test alone, and no scheduler."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    own.pop("CUDA_VISIBLE_DEVICES", None)
    path = os.pathsep.join([str(SCRIPTS), os.environ.get("PYTHONPATH", "")])
    return own | {"PYTHONPATH": path, "SHARDWISE_LEASES": str(tmp_path / "leases")}


@pytest.fixture
def xp(backend):
    """The array module itself."""
    return load_backend(backend)[0]
