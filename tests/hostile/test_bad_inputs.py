"""Each bad input ends as `messages.md` says; `make errors` writes it and `docs/errors.md`."""

import pytest

from tests.hostile import bad_inputs, errors_page
from tests.hostile.bad_inputs import CASES, MESSAGES

ALL = [(title, case) for title, cases in CASES.items() for case in cases]


@pytest.mark.parametrize(("title", "case"), ALL, ids=lambda value: getattr(value, "what", ""))
def test_a_bad_input_ends_as_its_row_says(tmp_path, monkeypatch, title, case):
    """The command that a user gives prints this message, and ends with this code."""
    monkeypatch.chdir(tmp_path)
    section = MESSAGES.read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    assert bad_inputs.row(case) in section.splitlines()


def test_no_other_input_is_listed():
    """The list has one row for each case, and no row of a case that is gone."""
    lines = [line for line in MESSAGES.read_text().splitlines() if line[:2] == "| "]
    names = [line.split(" | ")[0][2:] for line in lines]
    assert [name for name in names if name != "what is wrong"] == [case.what for _, case in ALL]


def test_the_page_has_the_messages_of_now():
    """The page explains the messages that are printed now, not older ones."""
    assert errors_page.PAGE.read_text() == errors_page.page(MESSAGES.read_text())
