"""Each bad input ends as `docs/errors.md` says; make errors writes the page anew."""

import pytest

from tests.hostile import bad_inputs
from tests.hostile.bad_inputs import CASES, PAGE

ALL = [(title, case) for title, cases in CASES.items() for case in cases]


@pytest.mark.parametrize(("title", "case"), ALL, ids=lambda value: getattr(value, "what", ""))
def test_a_bad_input_ends_as_the_page_says(tmp_path, monkeypatch, title, case):
    """The command that a user gives prints this message, and ends with this code."""
    monkeypatch.chdir(tmp_path)
    section = PAGE.read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    assert bad_inputs.row(case) in section.splitlines()


def test_the_page_shows_no_other_input():
    """A case that is gone leaves the page as well."""
    shown = [line.split(" | ")[0][2:] for line in PAGE.read_text().splitlines() if line[:2] == "| "]
    assert [name for name in shown if name != "what is wrong"] == [case.what for _, case in ALL]
