"""Acoustic waves in two dimensions: one shot of a seismic survey per matrix.

Solves ∂²p/∂t² / v² = ∂²p/∂x² + ∂²p/∂z² + s(t) δ(x - x₀) δ(z - z₀) by finite differences, of second
order in time and eighth order in space (Alford, Kelly and Boore, Geophysics 39, 1974; Dablain,
Geophysics 51, 1986). The surface is free (p = 0); at the other three sides a sponge absorbs the
waves (Cerjan, Kosloff, Kosloff and Reshef, Geophysics 50, 1985). The same code runs on NumPy and on
cupy: ``xp`` is one of these modules.
"""

from typing import Any

import numpy as np

SPACING = 10.0
"""Metres between points of the grid, the same in depth and along the surface."""

STEP = 0.001
"""Seconds from one sample to the next."""

SAMPLES = 600
"""Samples of a record; the first is at the time 0."""

RECEIVER_DEPTH = 20.0
"""Metres from the surface, where the pressure is zero, down to the receivers."""

PEAK = 15.0
"""Peak frequency of the Ricker source, in hertz."""

SPONGE = 40
"""Width of the sponge in grid points: at all sides of the model but the surface."""

# Second derivative, eighth order: weights of the point itself and its four neighbours on each side.
WEIGHTS = (-205 / 72, 8 / 5, -1 / 5, 8 / 315, -1 / 560)
_HALO = len(WEIGHTS) - 1
_DAMPING = 0.005  # of a few values tried, it reflects least: about 0.001 of a wave

COURANT = (2 / (abs(WEIGHTS[0]) + 2 * sum(map(abs, WEIGHTS[1:])))) ** 0.5
"""Largest stable v STEP / SPACING in two dimensions, 0.55 (Lines, Slawinski and Bording,
Geophysics 64, 1999)."""


def shot(xp: Any, block: Any) -> Any:
    """The records of a block of shots, taken by receivers along the surface.

    Parameters
    ----------
    block
        Shape ``(n, 1 + nz, nx)``. Row 0 of a matrix holds the source's depth and its place along
        the surface in its first two elements, in metres (the nearest point of the grid is taken).
        The other rows hold the velocity in m/s, from the surface down.

    Returns
    -------
    xp.ndarray
        Pressure ``(n, SAMPLES, nx)``: a receiver at every point, ``RECEIVER_DEPTH`` down.

    Raises
    ------
    ValueError
        If a source lies outside its model, a velocity is not positive, or the scheme would be
        unstable.
    """
    sources = xp.rint(block[:, 0, :2] / SPACING).astype(xp.int64)
    receivers = round(RECEIVER_DEPTH / SPACING)
    return propagate(xp, block[:, 1:], sources, receivers, SPACING, STEP, SAMPLES, PEAK)


def propagate(
    xp: Any, velocity: Any, sources: Any, receivers: int, spacing: float, step: float,
    samples: int, peak: float,
) -> Any:  # fmt: skip
    """The records of shots in n models ``(n, nz, nx)``, computed together but independently.

    Parameters
    ----------
    sources
        Row and column of each source, ``(n, 2)``.
    receivers
        Row of the receivers, one in each column.
    spacing, step, peak
        In metres, seconds and hertz.

    Returns
    -------
    xp.ndarray
        Shape ``(n, samples, nx)``, float32 or wider.
    """
    velocity = velocity.astype(xp.result_type(velocity.dtype, xp.float32))
    _check(xp, velocity, sources, spacing, step)
    shots, rows, columns = velocity.shape
    sides = ((0, 0), (0, SPONGE), (SPONGE, SPONGE))
    courant = (xp.pad(velocity, sides, mode="edge") * (step / spacing)) ** 2
    damping = xp.asarray(_damping(rows, columns), velocity.dtype)
    halo = (shots, *(points + 2 * _HALO for points in courant.shape[1:]))
    before, now = xp.zeros(halo, velocity.dtype), xp.zeros(halo, velocity.dtype)
    inner = (slice(None), slice(_HALO, -_HALO), slice(_HALO, -_HALO))
    change, work = xp.empty_like(courant), xp.empty_like(courant)
    at_sources = (xp.arange(shots), sources[:, 0], sources[:, 1] + SPONGE)
    records = xp.empty((shots, samples, columns), velocity.dtype)
    pulse = ricker(np.arange(samples) * step, peak)
    for sample in range(samples):
        records[:, sample] = now[inner][:, receivers, SPONGE : SPONGE + columns]
        # The free surface: the field above it mirrors the field below, with the opposite sign.
        now[:, :_HALO] = -now[:, 2 * _HALO : _HALO : -1]
        _laplacian(xp, now, change, work)
        change[at_sources] += float(pulse[sample])
        change *= courant
        # The next field, 2 now - before + change, is written over the field `before`.
        xp.multiply(now[inner], 2, out=work)
        work -= before[inner]
        work += change
        xp.multiply(work, damping, out=before[inner])
        now[inner] *= damping
        before, now = now, before
    return records


def ricker(times: Any, peak: float) -> Any:
    """The Ricker wavelet of a peak frequency, with its peak at the time 1.5 / peak."""
    squared = (np.pi * peak * (times - 1.5 / peak)) ** 2
    return (1 - 2 * squared) * np.exp(-squared)


def _laplacian(xp: Any, field: Any, out: Any, work: Any) -> None:
    """Sum of both second derivatives, times the spacing squared; ``field`` has a halo."""
    rows, columns = out.shape[1:]

    def shifted(down: int, right: int) -> Any:
        return field[:, _HALO + down :, _HALO + right :][:, :rows, :columns]

    xp.multiply(shifted(0, 0), 2 * WEIGHTS[0], out=out)
    for distance, weight in enumerate(WEIGHTS[1:], 1):
        xp.add(shifted(0, -distance), shifted(0, distance), out=work)
        work += shifted(-distance, 0)
        work += shifted(distance, 0)
        work *= weight
        out += work


def _damping(rows: int, columns: int) -> Any:
    """Factors that each step multiplies the field by: 1 in the model, falling in the sponge."""
    right = np.maximum(0, np.arange(columns + 2 * SPONGE) - (SPONGE + columns - 1))
    across = np.maximum(right, right[::-1])  # how many points deep in the sponge
    down = np.maximum(0, np.arange(rows + SPONGE) - (rows - 1))
    return np.exp(-((_DAMPING * down[:, np.newaxis]) ** 2) - (_DAMPING * across) ** 2)


def _check(xp: Any, velocity: Any, sources: Any, spacing: float, step: float) -> None:
    slowest, fastest = float(velocity.min()), float(velocity.max())
    if not slowest > 0:
        raise ValueError(f"velocities must be positive, but the slowest is {slowest:g} m/s")
    ratio = fastest * step / spacing
    if ratio > COURANT:
        raise ValueError(
            f"unstable: v step / spacing = {fastest:g} m/s x {step:g} s / {spacing:g} m = "
            f"{ratio:.3f}, but at most {COURANT:.3f} is stable; take a step of "
            f"{0.99 * COURANT * spacing / fastest:.3g} s or less"
        )
    limits = xp.asarray(velocity.shape[1:])
    outside = (sources < xp.asarray([1, 0])) | (sources >= limits)
    if bool(outside.any()):
        raise ValueError(
            f"a source lies outside its model of {tuple(velocity.shape[1:])} points, or on the "
            "surface, where the pressure is zero"
        )
