"""What Snakemake asks and must be told: names, resources and hooks.

A config and Snakemake's workflow come in; answers to its rules go out.
"""
