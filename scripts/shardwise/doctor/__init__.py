"""What would run on this machine, and what is missing: looks and tells, changes and kills nothing.

A config comes in, if there is one; findings with what to do, and a verdict, go out.
"""
