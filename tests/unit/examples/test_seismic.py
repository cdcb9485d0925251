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
GROUND = np.random.default_rng(4).uniform(1500, 3000, (40, 60))
"""A model whose velocity changes at every point."""


def outgoing(distance, times):
    """Pressure at a distance from a source in an unbounded medium, from the Green's function.

    With τ = r/v cosh u the integral of s(t - τ) / (2π √(τ² - r²/v²)) over τ loses its singularity.
    """
    arrival = distance / SPEED
    pressure = np.zeros_like(times)
    for i, time in enumerate(times):
        if time > arrival:
            u = np.linspace(0, np.arccosh(time / arrival), 2001)
            wavelet = seismic.ricker(time - arrival * np.cosh(u), PEAK)
            pressure[i] = np.trapezoid(wavelet, u) / (2 * np.pi)
    return pressure


def analytic(column, times):
    """The record below a free surface: that of the source less that of its mirror image."""
    across, below = 10.0 * (column - SOURCE[1]), 10.0 * SOURCE[0]
    direct, mirrored = (
        outgoing(np.hypot(across, below + depth), times)
        for depth in (-10.0 * RECEIVERS, 10.0 * RECEIVERS)
    )
    return direct - mirrored


@pytest.mark.parametrize("column", [60, 90])
def test_a_constant_medium_has_the_analytic_record(column):
    """Within 2 %; a step that would make it unstable is refused."""
    times = 0.001 * np.arange(round(SECONDS * 1000))
    velocity = np.full((1, ROWS, COLUMNS), SPEED)
    record = seismic.propagate(
        np, velocity, np.array([SOURCE]), RECEIVERS, 10, 0.001, len(times), PEAK
    )
    exact = analytic(column, times)
    assert np.linalg.norm(record[0, :, column] - exact) < 0.02 * np.linalg.norm(exact)
    with pytest.raises(ValueError, match=r"unstable: v step / spacing = "):
        seismic.propagate(np, np.full((1, 9, 9), SPEED), np.array([[4, 4]]), 2, 10.0, 0.01, 9, PEAK)


def shots(sources, velocity):
    """Matrices of shots as the example encodes them, one source each, over one model."""
    block = np.zeros((len(sources), 1 + velocity.shape[0], velocity.shape[1]), velocity.dtype)
    block[:, 0, :2] = sources
    block[:, 1:] = velocity
    return block


def test_a_shot_does_not_see_its_neighbours():
    """Alone or in a block: the same bits, so the cut into shards changes none."""
    block = shots([(50, 100), (30, 400), (70, 590)], GROUND.astype("float32"))
    together = seismic.shot(np, block)
    for i in range(3):
        assert seismic.shot(np, block[i : i + 1]).tobytes() == together[i].tobytes()
