"""The table of faults and the page that shows it."""

from types import SimpleNamespace

import pytest

from tests.faults import table
from tests.faults.table import PAGE
from tests.workspace import REPO

TEXT = (
    f"{table._HEAD}\n|---|---|---|---|---|\n| a | by b | 0 | 0 | 0 |\n| c | by d | 0 | 0 | 0 |\n\n"
)


def report(fault, tries, when="call", outcome="passed"):
    """What pytest says of a test, or of one of its phases."""
    properties = [("fault", fault), *[("tried", 1)] * tries]
    failed, skipped = outcome == "failed", outcome == "skipped"
    return SimpleNamespace(user_properties=properties, when=when, failed=failed, skipped=skipped)


def test_the_page_has_a_row_for_each_fault_that_a_test_makes():
    """A fault without a row, and a row without a test, are both told."""
    assert set(table.rows(PAGE.read_text(encoding="utf-8"))) == table.marked(REPO / "tests")


def test_the_page_shows_figures_and_no_loss():
    """Each row was tried, and nothing was lost."""
    text = PAGE.read_text(encoding="utf-8").split(table._HEAD)[1].split("\n\n")[0]
    for line in text.splitlines()[2:]:
        tried, survived, lost = (int(cell) for cell in line.strip("| ").split("|")[-3:])
        assert tried == survived > 0 == lost, line


def test_the_figures_are_those_of_the_run():
    """Tries are added up by fault; a failure loses one, a skip is said, the rest is zero."""
    reports = [
        report("a", 3),
        report("a", 0),
        report("a", 0, when="teardown"),
        report("a", 5, outcome="failed"),
        report("c", 0, when="setup", outcome="skipped"),
        SimpleNamespace(user_properties=[], when="call", failed=True, skipped=False),
    ]
    found = list(table.lines(TEXT, table.figures(reports)))
    assert found[2:] == ["| a | by b | 9 | 8 | 1 |", "| c | by d | 0 (1 tests skipped) | 0 | 0 |"]


@pytest.mark.parametrize("expression", ["fault and not nightly", "slurm or nightly"])
def test_the_table_is_printed_where_faults_were_asked_for(expression):
    """By `make faults` and `make nightly`, and not by a run of the suite, which leaves some out."""
    assert table.wanted(expression)
    assert not table.wanted("not nightly")
