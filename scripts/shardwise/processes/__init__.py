"""Processes and threads, whatever they compute: apart, watched, in a clean environment."""
