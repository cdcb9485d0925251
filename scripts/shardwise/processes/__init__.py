"""Processes and threads, whatever they compute: apart, watched, in a clean environment.

Code, a process number or variables come in; how a process ended goes out.
"""
