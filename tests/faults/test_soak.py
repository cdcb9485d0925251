"""The soak: runs with random faults, repaired as their messages say, always end at the same sum."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.soak import Soak, Way

FIRST = int(os.environ.get("SOAK_SEED", "1"))
"""The first seed; the failing one is in the name of its test."""

pytestmark = pytest.mark.timeout(1800)  # that of a machine on which all else happens as well

WHOLE = [Way(True, dispatch) for dispatch in ("jobs", "pool", "mpi")]
BY_HAND = [Way(False, dispatch) for dispatch in ("jobs", "pool", "mpi")]


Count = Callable[[], None]


def soak(folder: Path, seed: int, ways: list[Way], runs: int, tried: Count) -> None:
    """Disturb runs of one results folder, and repair it after each of them."""
    soak = Soak(folder / "w", seed)
    for _ in range(runs):
        tried()
        soak.damage()
        soak.disturbed(soak.random.choice(ways))
        soak.healed(soak.random.choice(ways))
        soak.check()


@pytest.mark.fault("random faults in every run (soak)")
@pytest.mark.parametrize("seed", [FIRST])
def test_a_short_soak(tmp_path: Path, seed: int, tried: Count) -> None:
    """Four bad runs of the scripts; a seed again: SOAK_SEED=7 make test ARGS="-k short_soak"."""
    soak(tmp_path, seed, BY_HAND, runs=4, tried=tried)


@pytest.mark.nightly
@pytest.mark.fault("random faults in every run (soak)")
@pytest.mark.parametrize("seed", range(FIRST, FIRST + 50))
def test_a_long_soak(tmp_path: Path, seed: int, tried: Count) -> None:
    """200 bad runs, a third of whole snakemake; again: SOAK_SEED=7 make nightly ARGS="-k [7]"."""
    soak(tmp_path, seed, [*WHOLE, *BY_HAND, *BY_HAND], runs=4, tried=tried)
