"""A real Grid Engine on one machine, for tests."""
