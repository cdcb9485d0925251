"""Each bad input is refused in words; docs/errors.md explains some of them (`make errors`)."""

import pytest

from tests.hostile.bad_inputs import CASES, ERRORS, EXPLAINED, renew, row

ALL = [case for cases in CASES.values() for case in cases]


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.what)
def test_a_bad_input_is_refused(case):
    """With its exit code, in words that name what they are about, as docs/errors.md shows them."""
    assert renew({case.what: row(case)}) == ERRORS.read_text()


def test_the_page_explains_only_what_is_refused():
    """Each of its rows has the name of one case, and no two have the same."""
    names = [case.what for case in ALL]
    rows = [found[1] for found in EXPLAINED.finditer(ERRORS.read_text())]
    assert len(rows) == ERRORS.read_text().count("\n| ") - 1
    assert [what for what in rows if names.count(what) != 1 or rows.count(what) != 1] == []
