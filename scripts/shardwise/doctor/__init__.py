"""What would run on this machine, and what is missing: looks and tells, changes and kills nothing.

Standard library only, so that it also works where a package is what is missing.
"""
