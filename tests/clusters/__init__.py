"""Real schedulers on this machine, and the tests that each of them must pass."""
