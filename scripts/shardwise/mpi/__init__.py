"""MPI ranks: how they are started, and what they do together.

A launcher or a communicator comes in; ranks, shared errors and merged arrays go out.
"""
