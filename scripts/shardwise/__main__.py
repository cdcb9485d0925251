"""`python -m shardwise`: the command `shardwise`, where no PATH leads to it, as in a notebook."""

import sys

from shardwise.command.__main__ import main

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the working folder, whose files are data
    main()
