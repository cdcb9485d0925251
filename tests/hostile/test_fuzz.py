"""Damaged files of every kind: a right result or a refusal in words, and nothing else.

`make fuzz` runs a million cases; here each reader gets a few, and all cases that ever broke a
promise. Those lie in ``tests/hostile/found``: a file per reader, a line per case.
"""

import ast
from pathlib import Path
from random import Random

import pytest

from tests.hostile.readers import READERS, Hang, reader

FOUND = Path(__file__).parent / "found"
CASES = [(name, 50) for name in READERS]
NIGHT = [pytest.mark.nightly, pytest.mark.timeout(36000)]
CASES += [pytest.param(name, 1_000_000 // len(READERS), marks=NIGHT) for name in READERS]


@pytest.mark.parametrize(("name", "count"), CASES)
def test_damaged_files_are_refused_in_words(tmp_path, name, count):
    """No fault, no hang, no large allocation, no write and no code run, whatever a file holds.

    A whole file is accepted, so refusals are due to the damage. Cases that once broke a promise are
    read again.
    """
    made = reader(name, tmp_path / "x")
    accepted = [made.check(seed) for seed in made.seeds]
    assert accepted[0]
    kept = FOUND / f"{name}.txt"
    for line in kept.read_text().splitlines() if kept.exists() else []:
        made.check(ast.literal_eval(line))
    random = Random(name)  # the same cases in each run
    for _ in range(count):
        raw = made.case(random)
        try:
            made.check(raw)
        except (Exception, Hang) as error:
            raise AssertionError(f"a case to keep in tests/hostile/found: {raw!r}") from error
