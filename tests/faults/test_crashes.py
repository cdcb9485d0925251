"""Each stage, killed at each of its calls to the disk: whole or not there, and the rest later."""

import pytest

from tests.factories import nightly
from tests.faults.conftest import Program
from tests.faults.stages import STAGES

TERMINATED = ["multiply", "multiply, keep: sum", "reduce"]


def check(report, tried, every=1, names=STAGES):
    """All stages were tried at all their points, and none was wrong."""
    assert set(report) == set(names)
    for name, found in report.items():
        for _ in range(found["tried"]):
            tried()
        assert found["wrong"] == [], name
        assert found["tried"] == -(-found["points"] // every) > 0, name


@pytest.mark.fault("kill -9 at a call to the disk")
@pytest.mark.timeout(600)
def test_each_stage_is_killed_at_each_call(program: Program, tried):
    """Before each call that changes a file, half-way through each write, and at the end."""
    check(program("crash_program", "kill", 1), tried)


@pytest.mark.fault("power loss at a call to the disk")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("every", [4, nightly(1)])
def test_each_stage_loses_power(program: Program, tried, every):
    """What no fsync has covered is gone: at every fourth point, or at all."""
    check(program("crash_program", "power", every), tried, every)


@pytest.mark.fault("SIGTERM at 30 moments")
def test_a_stage_is_asked_to_end(program: Program, tried):
    """143, or 0 where it was as good as done; no temporary file; and a rerun does the rest."""
    check(program("crash_program", "term", 1, *TERMINATED), tried, names=TERMINATED)
