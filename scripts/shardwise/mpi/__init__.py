"""MPI ranks: how they are started, and what they do together."""
