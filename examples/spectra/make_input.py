"""Write input.npy: spectra of a wave that passes 8 sensors, with noise, shape (400, 8, 12).

A matrix is a segment of the recording: a row per sensor, a column per frequency of a narrow band.
Sensor i hears the wave i · DELAY later than sensor 0. So in the cross-spectral matrix, the sum of
A @ A.H over all segments, element (i, j) has the phase -2π f (i - j) DELAY: the answer is known.
"""

from pathlib import Path

import numpy as np
from shardwise.files.commit import commit

SENSORS, SEGMENTS, RATE, SAMPLES = 8, 400, 1000.0, 1024  # RATE per second, SAMPLES per segment
DELAY = 1.7e-3  # seconds from sensor to sensor: 1.7 samples
BAND = slice(97, 109)  # around 100 Hz
FREQUENCIES = np.fft.rfftfreq(SAMPLES, 1 / RATE)


def segments(seed: int = 0) -> np.ndarray:
    """The spectra in the band, ``(segments, sensors, frequencies)``, with a Hann window."""
    random = np.random.default_rng(seed)
    wave = np.fft.rfft(random.standard_normal((SEGMENTS, 1, SAMPLES)))
    shift = np.exp(-2j * np.pi * FREQUENCIES * DELAY * np.arange(SENSORS)[:, np.newaxis])
    heard = np.fft.irfft(wave * shift, SAMPLES)
    heard += 2 * random.standard_normal(heard.shape)  # noise of four times the power of the wave
    return np.fft.rfft(heard * np.hanning(SAMPLES))[..., BAND].astype("complex64")


def delay(spectra: np.ndarray) -> float:
    """Seconds from sensor to sensor, from the phases next to the diagonal of the sum."""
    between = np.diagonal(spectra, -1).sum()
    return float(-np.angle(between) / (2 * np.pi * FREQUENCIES[BAND].mean()))


if __name__ == "__main__":
    stack = segments()
    with commit(Path(__file__).with_name("input.npy")) as file:
        np.save(file, stack)
