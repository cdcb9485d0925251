"""From a config to a plan: numbers in, table out.

A config comes in; shards, settings and memory figures go out.
"""
