"""Write input.npy: the digits that scikit-learn ships, as rows of 64 pixels, shape (1797, 1, 64).

Each matrix is one image with its pixels in one row, so each image is one observation. Source:
E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning
Repository, 1998.
"""

from pathlib import Path

import numpy as np
from shardwise.files.commit import commit
from sklearn.datasets import load_digits

if __name__ == "__main__":
    rows = load_digits().data[:, None, :].astype("float32")
    with commit(Path(__file__).with_name("input.npy")) as file:
        np.save(file, rows)
