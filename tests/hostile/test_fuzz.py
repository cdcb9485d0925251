"""Damaged files of every kind: a right result or a refusal in words, and nothing else.

`make nightly` gives a million cases; here each reader gets some hundred or thousand, and all that
ever broke.
"""

from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.hostile import fuzz
from tests.hostile.mutate import mutated
from tests.hostile.readers import READERS, TRIED, reader

SLOW = {
    "config": 125, "cache": 200, "sheet": 200, "record": 250,
    "forged": 500, "ledger": 500, "receipt": 500, "seen": 300, "live": 300, "summed": 200,
    "logged": 200,
}  # fmt: skip
CASES = {name: SLOW.get(name, 1000) for name in READERS}
"""Those of the suite: fewer where one takes longer."""


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_refused_in_words(tmp_path, name):
    """No fault, no hang, no large allocation, no write and no code run, whatever a file holds."""
    made = reader(name, tmp_path / "x")

    # The phases that are left out shrink what fails, which the kept case makes needless.
    @settings(
        max_examples=CASES[name], database=None, derandomize=True, deadline=None,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.randoms(use_true_random=True))
    def cases(random):
        made.check(made.case(random))

    before = TRIED[made.__class__.__name__]
    cases()
    assert TRIED[made.__class__.__name__] - before >= CASES[name]


@pytest.mark.parametrize("name", READERS)
def test_what_once_broke_a_promise_keeps_it(tmp_path, name):
    """Every case that was ever found is read again."""
    made = reader(name, tmp_path / "x")
    for raw in fuzz.found(name):
        made.check(raw)


@pytest.mark.parametrize("name", READERS)
def test_whole_files_are_accepted(tmp_path, name):
    """The files that the damaged ones are made of are whole: damage, not the reader, refuses."""
    made = reader(name, tmp_path / "x")
    accepted = [made.check(seed) for seed in made.seeds]
    assert accepted[0]


def test_what_is_nested_is_damaged_further():
    """Damage is done to what an earlier damage has nested as deeply as JSON is read."""
    raw = b"[" * 900 + b"1" + b"]" * 900
    for seed in range(40):
        mutated(raw, Random(seed), [raw])


@pytest.mark.nightly
@pytest.mark.timeout(36000)
def test_a_million_damaged_files(tmp_path, capsys):
    """A million cases in all, each counted by the process that read it."""
    with capsys.disabled():
        tried, broken = fuzz.run(1_000_000, 0, tmp_path, list(READERS), fuzz.GUIDED)
    assert (tried, broken) == (1_000_000, 0)
