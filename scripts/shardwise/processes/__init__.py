"""Processes of this machine, whatever they compute: run apart, watched.

Code or a process number comes in; how a process ended, or hangs, goes out.
"""
