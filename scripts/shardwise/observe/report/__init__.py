"""The page on a run.

A status comes in; one HTML file goes out.
"""
