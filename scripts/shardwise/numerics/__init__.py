"""The mathematics, with ``xp`` as an argument.

Arrays come in; arrays and bounds go out. This room opens no data file.
"""
