"""Random histories of results folders, each "done" compared with a fresh run of the same config."""
