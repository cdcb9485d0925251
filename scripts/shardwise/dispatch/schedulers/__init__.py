"""The schedulers that array jobs run on, a class each.

Tasks come in; submissions, states and cancellations go out.
"""
