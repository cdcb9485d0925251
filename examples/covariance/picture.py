"""Draw digits.png: the mean digit, and the directions in which digits differ most.

The directions are the leading eigenvectors of the covariance, each with its share of the variance.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import shardwise


def components(covariance: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The leading eigenvectors as rows, and the share of the variance that each explains."""
    values, vectors = np.linalg.eigh(covariance)
    return vectors.T[::-1][:count], values[::-1][:count] / values.sum()


def draw(folder: str | Path, picture: str | Path) -> None:
    """Draw the mean and the directions from the results in a folder."""
    found = shardwise.open(folder).statistics
    axes, parts = components(found["covariance"], 7)
    figure, panels = plt.subplots(2, 4, figsize=(8, 4.4), layout="constrained")
    panels[0, 0].imshow(found["row_mean"].reshape(8, 8), cmap="gray_r")
    panels[0, 0].set_title("the mean digit")
    for panel, axis, part in zip(panels.flat[1:], axes, parts, strict=True):
        most = abs(axis).max()
        panel.imshow(axis.reshape(8, 8), cmap="RdBu", vmin=-most, vmax=most)
        panel.set_title(f"{100 * part:.0f} % of the variance")
    for panel in panels.flat:
        panel.set_axis_off()
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    draw(*sys.argv[1:] or ("results/covariance", "digits.png"))
