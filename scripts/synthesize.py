"""Write the synthetic stack, input.npy, that the plan asks for."""

from shardwise.command.__main__ import main

main("synthesize")
