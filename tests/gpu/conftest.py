"""The same tests on NumPy and, if there is a GPU, on cupy."""

import pytest
from shardwise.devices.choose import driver_cuda_version
from shardwise.multiply.backend import load_backend

needs_gpu = pytest.mark.skipif(driver_cuda_version() is None, reason="no NVIDIA driver here")


@pytest.fixture(params=["numpy", pytest.param("cupy", marks=needs_gpu)])
def backend(request):
    """The name of an array module, as the config's key ``backend`` takes it."""
    return request.param


@pytest.fixture
def xp(backend):
    """The array module itself."""
    return load_backend(backend)[0]


@pytest.fixture
def cupy():
    """The array module, on a leased device."""
    return load_backend("cupy")[0]
