"""Write input.npy: the handwritten digits that scikit-learn ships, shape (1797, 8, 8).

Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine
Learning Repository, 1998.
"""

from pathlib import Path

import numpy as np
from shardwise.files.commit import commit
from sklearn.datasets import load_digits

if __name__ == "__main__":
    images = load_digits().images
    with commit(Path(__file__).with_name("input.npy")) as file:
        np.save(file, images)
