"""What a results folder shows, from its files alone; it can never change a run.

A results folder comes in; a watch, a page and metrics go out.
"""
