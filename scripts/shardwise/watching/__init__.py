"""The view of a run in a terminal, while it goes on."""
