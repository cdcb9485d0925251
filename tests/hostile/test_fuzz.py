"""Damaged files of every kind: a right result or a refusal in words, and nothing else.

`make fuzz` gives a million cases; here each reader gets some hundred or thousand, and all that
ever broke a promise: those lie in ``tests/hostile/found``, a file a reader, a line each.
"""

import ast
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.hostile.readers import READERS, Hang, reader

FOUND = Path(__file__).parent / "found"
SLOW = {
    "config": 30, "sheet": 50, "record": 60, "forged": 100,
    "receipt": 100, "seen": 50, "live": 50, "summed": 50, "failed": 50,
    "hdf5": 100, "zarr": 30, "zarr2": 30,
}  # fmt: skip
"""Cases of the suite: fewer where one takes longer."""


def cases(made, count, guided=False):
    """A function that gives a reader so many damaged files, the same in each run."""

    # The phases that are left out shrink what fails, which the message makes needless.
    @settings(
        max_examples=count, database=None, derandomize=True, deadline=None,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.randoms(use_true_random=not guided))
    def read(random):
        raw = made.case(random)
        try:
            made.check(raw)
        except (Exception, Hang) as error:
            raise AssertionError(f"a case to keep in tests/hostile/found: {raw!r}") from error

    return read


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_refused_in_words(tmp_path, name):
    """No fault, no hang, no large allocation, no write and no code run, whatever a file holds.

    Whole files are accepted: damage, not the reader, refuses. What once broke a promise is read
    again.
    """
    made = reader(name, tmp_path / "x")
    accepted = [made.check(seed) for seed in made.seeds]
    assert accepted[0]
    kept = FOUND / f"{name}.txt"
    for line in kept.read_text().splitlines() if kept.exists() else []:
        made.check(ast.literal_eval(line))
    before, count = made.tried, SLOW.get(name, 200)
    cases(made, count)()
    assert made.tried - before >= count


@pytest.mark.nightly
@pytest.mark.timeout(36000)
@pytest.mark.parametrize("name", READERS)
def test_a_million_damaged_files(tmp_path, name):
    """A million cases over all readers."""
    cases(reader(name, tmp_path / "x"), 1_000_000 // len(READERS))()
