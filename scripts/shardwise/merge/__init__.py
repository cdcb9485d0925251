"""One total of several finished runs, in one process."""
