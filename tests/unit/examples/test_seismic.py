"""The seismic example against the analytic solution of the wave equation."""

import runpy
from types import SimpleNamespace

import numpy as np
import pytest

from tests.factories import ROOT

seismic = SimpleNamespace(**runpy.run_path(ROOT / "examples" / "seismic" / "propagator.py"))

SPEED, PEAK = 2000.0, 15.0
ROWS, COLUMNS, SECONDS = 91, 121, 0.5
SOURCE, RECEIVERS = (30, 60), 2
"""Places in grid points of 10 m; in this time no wave from the sides reaches a receiver."""


def outgoing(across, below, times):
    """Pressure at a place off a source in an unbounded medium, from the Green's function.

    With τ = r/v cosh u the integral of s(t - τ) / (2π √(τ² - r²/v²)) over τ loses its singularity.
    """
    arrival = np.hypot(across, below) / SPEED
    pressure = np.zeros_like(times)
    for i, time in enumerate(times):
        if time > arrival:
            u = np.linspace(0, np.arccosh(time / arrival), 2001)
            wavelet = seismic.ricker(time - arrival * np.cosh(u), PEAK)
            pressure[i] = np.trapezoid(wavelet, u) / (2 * np.pi)
    return pressure


@pytest.mark.parametrize("column", [60, 90])
def test_a_constant_medium_has_the_analytic_record(column):
    """Within 2 %; a step that would make it unstable is refused."""
    times = 0.001 * np.arange(round(SECONDS * 1000))
    velocity = np.full((1, ROWS, COLUMNS), SPEED)
    record = seismic.propagate(
        np, velocity, np.array([SOURCE]), RECEIVERS, 10, 0.001, len(times), PEAK
    )
    across, depth = 10.0 * (column - SOURCE[1]), 10.0 * SOURCE[0]
    # Below a free surface: the record of the source less that of its mirror image.
    exact = outgoing(across, depth - 10 * RECEIVERS, times)
    exact -= outgoing(across, depth + 10 * RECEIVERS, times)
    assert np.linalg.norm(record[0, :, column] - exact) < 0.02 * np.linalg.norm(exact)
    with pytest.raises(ValueError, match=r"unstable: v step / spacing = "):
        seismic.propagate(np, np.full((1, 9, 9), SPEED), np.array([[4, 4]]), 2, 10.0, 0.01, 9, PEAK)


def test_a_shot_does_not_see_its_neighbours():
    """Alone or in a block: the same bits, so the cut into shards changes none."""
    block = np.zeros((3, 41, 60), "float32")  # as the example encodes shots
    block[:, 0, :2] = [(50, 100), (30, 400), (70, 590)]
    block[:, 1:] = np.random.default_rng(4).uniform(1500, 3000, (40, 60))
    together = seismic.shot(np, block)
    for i in range(3):
        assert seismic.shot(np, block[i : i + 1]).tobytes() == together[i].tobytes()
