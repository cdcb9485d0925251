"""Array files other than ``.npy``, a module for each format.

The name of an array comes in; where its numbers lie, or the numbers of some matrices, go out.
"""
