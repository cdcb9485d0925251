"""The command `shardwise`: it starts Snakemake or a stage, and writes a user's folder."""
