"""Write the synthetic stack, input.npy, that the plan asks for."""

from shardwise.command.__main__ import main

if __name__ == "__main__":
    main("synthesize")
