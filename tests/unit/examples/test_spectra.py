"""The cross-spectra of the example, by our own products, give the delay that went in."""

import runpy
from types import SimpleNamespace

import numpy as np
import pytest

from tests import factories

spectra = SimpleNamespace(
    **runpy.run_path(factories.ROOT / "examples" / "spectra" / "make_input.py")
)


def test_the_delay_between_sensors_is_found(tmp_path):
    """Although the noise has four times the power of the wave; the sum is Hermitian."""
    stack = spectra.segments()
    made = factories.plan(tmp_path, stack, product="A @ A.H", keep="sum", shards=3)
    total = factories.reduced(factories.listed(made))
    np.testing.assert_allclose(total, total.conj().T, rtol=1e-6)
    assert spectra.delay(total) == pytest.approx(spectra.DELAY, rel=0.05)
