"""One sum over all ranks, which `mpi` starts and keeps in agreement.

Receipts and partial sums come in; ``sum.npy`` and its receipt go out.
"""
