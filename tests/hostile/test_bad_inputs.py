"""Each bad input is refused in words; `make errors` writes the page that explains some of them."""

import pytest

from tests.hostile import bad_inputs, errors_page
from tests.hostile.bad_inputs import CASES

ALL = [case for cases in CASES.values() for case in cases]


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.what)
def test_a_bad_input_is_refused(case):
    """With its exit code, in words that name what they are about, as docs/errors.md shows them."""
    row = bad_inputs.row(case)
    more = errors_page.MORE.get(case.what)
    assert more is None or f"{row} {more} |\n" in errors_page.PAGE.read_text()


def test_the_page_explains_only_what_is_refused():
    """Each of its rows is that of a case, and has a name of its own."""
    names = [case.what for case in ALL]
    assert [what for what in errors_page.MORE if names.count(what) != 1] == []
    rows = errors_page.PAGE.read_text().count("\n| ") - 1
    assert rows == len(errors_page.MORE)
