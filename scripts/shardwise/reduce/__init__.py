"""One sum over all ranks, which `mpi` starts and lets agree.

Receipts and partial sums come in; ``sum.npy`` and its receipt go out.
"""
