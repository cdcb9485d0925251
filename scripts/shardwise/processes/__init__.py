"""Processes of this machine, whatever they compute: run apart, watched, cleared up after.

Code or a process number comes in; how a process ended, hangs, or what it left goes out.
"""
