"""One sum over all ranks; with `dispatch.mpi` the only importer of mpi4py.

Receipts and partial sums come in; ``sum.npy`` and its receipt go out.
"""
