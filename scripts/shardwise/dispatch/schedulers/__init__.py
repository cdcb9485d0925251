"""The schedulers that array jobs run on, a module each.

Tasks come in; submissions, states and cancellations go out.
"""
