"""Make the fixtures of Grid Engine known to the tests in this folder."""

from tests.uge.fixtures import uge, uge_hosts

__all__ = ["uge", "uge_hosts"]
