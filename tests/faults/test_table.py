"""The table of faults and the page that shows it."""

from tests.faults import table
from tests.faults.table import PAGE
from tests.workspace import REPO


def test_the_page_has_a_row_for_each_fault_that_a_test_makes():
    """No fault lacks a row, and no row lacks a test."""
    assert set(table.rows(PAGE.read_text(encoding="utf-8"))) == table.marked(REPO / "tests")


def test_the_page_shows_figures_and_no_loss():
    """Each row was tried, and nothing was lost."""
    text = PAGE.read_text(encoding="utf-8").split(table._HEAD)[1].split("\n\n")[0]
    for line in text.splitlines()[2:]:
        tried, survived, lost = (int(cell) for cell in line.strip("| ").split("|")[-3:])
        assert tried == survived > 0 == lost, line
