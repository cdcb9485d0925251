"""The seismic example against the analytic solution and the symmetries of the wave equation."""

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


def recorded(refine):
    """Times, and the record of one shot in a constant medium, every ``refine``-th receiver."""
    velocity = np.full((1, (ROWS - 1) * refine + 1, (COLUMNS - 1) * refine + 1), SPEED)
    step, samples = 0.001 / refine, round(SECONDS * 1000) * refine
    record = seismic.propagate(
        np, velocity, np.array([SOURCE]) * refine, RECEIVERS * refine, 10 / refine, step, samples,
        PEAK,
    )  # fmt: skip
    return step * np.arange(samples), record[0, :, ::refine]


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
    """Within 2 %, and with half the spacing within 0.3 of that: the scheme is of second order."""
    off = []
    for refine in (1, 2):
        times, record = recorded(refine)
        exact = analytic(column, times)
        off.append(np.linalg.norm(record[:, column] - exact) / np.linalg.norm(exact))
    assert off[0] < 0.02
    assert off[1] < 0.3 * off[0]
    with pytest.raises(ValueError, match=r"unstable: v step / spacing = "):
        seismic.propagate(np, np.full((1, 9, 9), SPEED), np.array([[4, 4]]), 2, 10.0, 0.01, 9, PEAK)


def shots(sources, velocity):
    """Matrices of shots as the example encodes them, one source each, over one model."""
    block = np.zeros((len(sources), 1 + velocity.shape[0], velocity.shape[1]), velocity.dtype)
    block[:, 0, :2] = sources
    block[:, 1:] = velocity
    return block


def test_source_and_receiver_can_change_places():
    """Reciprocity holds to rounding in any medium, sponges and free surface included."""
    depth = seismic.RECEIVER_DEPTH
    record = seismic.shot(np, shots([(depth, 100), (depth, 450)], GROUND))
    there, back = record[0, :, 45], record[1, :, 10]
    assert np.abs(there - back).max() < 1e-12 * np.abs(there).max()


def test_a_shot_does_not_see_its_neighbours():
    """Alone or in a block: the same bits, so the cut into shards changes none."""
    block = shots([(50, 100), (30, 400), (70, 590)], GROUND.astype("float32"))
    together = seismic.shot(np, block)
    for i in range(3):
        assert seismic.shot(np, block[i : i + 1]).tobytes() == together[i].tobytes()
