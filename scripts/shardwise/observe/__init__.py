"""Shows the state of a results folder from its files alone; nothing here can change a run.

A results folder comes in; a watch, a page and metrics go out.
"""
