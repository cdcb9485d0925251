"""Snakemake, as `shardwise run` starts it: a Ctrl-C while it is imported needs no traceback."""

from shardwise.errors import leave_on_interrupt

if __name__ == "__main__":
    leave_on_interrupt()
    from snakemake.cli import main  # it takes seconds

    main()
