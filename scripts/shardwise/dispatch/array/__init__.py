"""Array jobs: one submission for all missing shards, followed to its end.

Missing shards come in; submitted arrays, the claims of their tasks and the fate of each go out.
"""
