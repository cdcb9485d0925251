"""Array files other than ``.npy``, a class each.

The name of an array comes in; where its numbers lie, or the numbers of some matrices, go out.
"""
