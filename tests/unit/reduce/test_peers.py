"""Ranks that wait for each other: right data, errors told once, and no wait without an end."""

import subprocess
import sys
from pathlib import Path

import pytest
from shardwise.errors import IntegrityError
from shardwise.reduce.peers import allocate_arrays

from tests.factories import SCRIPTS

PROGRAM = Path(__file__).with_name("peers_program.py")


def world(ranks, case, limit=60):
    """Run a case; the exit status, and what all ranks wrote."""
    launcher = str(Path(sys.executable).with_name("mpiexec"))
    line = [launcher, "-n", str(ranks), sys.executable, str(PROGRAM), case, str(limit)]
    path = {"PYTHONPATH": str(SCRIPTS), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        line, capture_output=True, text=True, check=False, timeout=60, env=path
    )  # fmt: skip


def test_a_common_step_fails_on_all_with_the_same_error():
    """The lowest rank's error is raised on all."""
    done = world(3, "lowest")
    assert sorted(done.stdout.splitlines()) == [f"{r}: rank 1 found damage" for r in range(3)]


def test_an_error_of_one_rank_reaches_those_that_wait():
    """All ranks end with its code, in order, and know its message."""
    done = world(3, "alone")
    assert done.returncode == 2
    assert sorted(done.stdout.splitlines()) == [f"{r}: InputError only here" for r in range(3)]


def test_an_error_of_the_disk_can_be_tried_again():
    """It ends all ranks with 75."""
    assert world(2, "disk").returncode == 75


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("stopped", "rank 1 has given no sign of life for 2 s"),
        ("stuck", "rank 1 has waited for 2 s for a file that never comes"),
    ],
)
def test_a_rank_that_hangs_ends_all(case, told):
    """Stopped, or waiting for a disk: after the limit all ranks end, and it is named."""
    done = world(3, case, limit=2)
    # 75, or what mpiexec makes of it and of the signal that ends the one that hangs.
    assert done.returncode != 0, done.stderr
    assert done.stderr.count(told) == 1


def test_a_rank_that_is_killed_ends_all():
    """No rank is left waiting."""
    assert world(3, "killed").returncode != 0


def test_a_rank_that_works_is_waited_for():
    """Longer than the limit, as long as it lives."""
    done = world(2, "patient", limit=1)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("text", ["", "[1]", '[["<f8", [1' + 12 * "0" + "]]]", '[["O", [1]]]', "{"])
def test_what_describes_no_arrays_is_refused(text):
    """Before any memory is taken."""
    with pytest.raises(IntegrityError, match="a description of arrays is damaged"):
        allocate_arrays(text, 8)
