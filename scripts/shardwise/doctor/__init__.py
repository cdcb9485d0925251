"""Checks what can run on this machine and what is missing; reports it, and changes nothing."""
