"""Write input.npy: 24 shots along one line, shape (24, 61, 121), as propagator.py expects them.

All shots share one model of 600 m by 1200 m: water over two layers, the lower one dipping.
"""

from pathlib import Path

import numpy as np
from propagator import SPACING
from shardwise.files.commit import commit

ROWS, COLUMNS = 60, 121
SHOTS = 24
SOURCE_DEPTH, FIRST_SOURCE, SOURCE_STEP = 40.0, 20.0, 50.0


def model() -> np.ndarray:
    """Velocity in m/s, shape ``(ROWS, COLUMNS)``."""
    depth = SPACING * np.arange(ROWS)[:, np.newaxis]
    place = SPACING * np.arange(COLUMNS)
    below_water, below_layer = depth >= 150, depth >= 300 + 0.1 * place
    return np.select([below_layer, below_water], [2800.0, 2000.0], 1500.0).astype(np.float32)


def survey() -> np.ndarray:
    """One matrix per shot, shape ``(SHOTS, 1 + ROWS, COLUMNS)``."""
    shots = np.zeros((SHOTS, 1 + ROWS, COLUMNS), np.float32)
    shots[:, 0, 0] = SOURCE_DEPTH
    shots[:, 0, 1] = FIRST_SOURCE + SOURCE_STEP * np.arange(SHOTS)
    shots[:, 1:] = model()
    return shots


if __name__ == "__main__":
    stack = survey()
    with commit(Path(__file__).with_name("input.npy")) as file:
        np.save(file, stack)
