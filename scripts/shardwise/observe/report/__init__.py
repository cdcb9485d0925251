"""The page on a run.

An observation comes in; one HTML file goes out.
"""
