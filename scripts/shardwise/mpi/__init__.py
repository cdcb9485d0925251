"""MPI ranks: how they are started, and what they do together.

One sentence of docs/architecture.md says who uses it: the reduce, and `dispatch: mpi`.
"""
