"""Damaged files of every kind: a right result or a refusal in words, and nothing else.

`make nightly` gives a million cases; here each reader gets some hundred or thousand, and all that
ever broke.
"""

from random import Random

import pytest

from tests.hostile import fuzz
from tests.hostile.mutate import mutated
from tests.hostile.readers import READERS, TRIED, reader

SLOW = {
    "config": 60, "cache": 100, "sheet": 100, "record": 120, "forged": 200, "ledger": 200,
    "receipt": 200, "seen": 100, "live": 100, "summed": 100, "logged": 100,
}  # fmt: skip
CASES = {name: SLOW.get(name, 400) for name in READERS}
"""Those of the suite: fewer where one takes longer."""


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_refused_in_words(tmp_path, name):
    """No fault, no hang, no large allocation, no write and no code run, whatever a file holds.

    Whole files are accepted: damage, not the reader, refuses. What once broke a promise is read
    again.
    """
    made = reader(name, tmp_path / "x")
    accepted = [made.check(seed) for seed in made.seeds]
    assert accepted[0]
    for raw in fuzz.found(name):
        made.check(raw)
    before = TRIED[type(made).__name__]
    fuzz.cases(made, CASES[name], tmp_path)()
    assert TRIED[type(made).__name__] - before >= CASES[name]


def test_what_is_nested_is_damaged_further():
    """Damage is done to what an earlier damage has nested as deeply as JSON is read."""
    raw = b"[" * 900 + b"1" + b"]" * 900
    for seed in range(40):
        mutated(raw, Random(seed), [raw])


@pytest.mark.nightly
@pytest.mark.timeout(36000)
@pytest.mark.parametrize("name", READERS)
def test_a_million_damaged_files(tmp_path, name):
    """A million cases over all readers."""
    fuzz.cases(reader(name, tmp_path / "x"), 1_000_000 // len(READERS), tmp_path)()
