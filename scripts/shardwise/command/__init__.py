"""The command `shardwise`: it starts Snakemake or a stage, and writes a user's folder.

In come the words of a command line; out goes the exit code of what they start.
"""
