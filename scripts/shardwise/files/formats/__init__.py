"""Array files other than ``.npy``, a module for each format."""
