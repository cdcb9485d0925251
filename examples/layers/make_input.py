"""Write input.npy (90, 32, 24), activations of three layers in mixed order, and labels.npy.

Each matrix X holds the inputs of one layer for 32 tokens; quantizers such as GPTQ need 2 Σ XᵀX of
each layer. Column j of layer i is normal with spread SPREADS[i] (j + 1), so the sums are known.
"""

from pathlib import Path

import numpy as np
from shardwise.files.commit import commit

BATCHES, TOKENS, FEATURES = 30, 32, 24  # of each layer
SPREADS = {"attention": 0.5, "mlp.down": 0.25, "mlp.up": 1.0}


def activations(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The stack, and the name of the layer of each matrix."""
    random = np.random.default_rng(seed)
    layers = random.permutation(np.repeat(list(SPREADS), BATCHES))
    spreads = np.array([SPREADS[layer] for layer in layers])[:, None, None]
    numbers = random.standard_normal((len(layers), TOKENS, FEATURES))
    return (numbers * spreads * np.arange(1, FEATURES + 1)).astype("float32"), layers


if __name__ == "__main__":
    stack, names = activations()
    np.save(Path(__file__).with_name("labels.npy"), names)
    with commit(Path(__file__).with_name("input.npy")) as file:
        np.save(file, stack)
