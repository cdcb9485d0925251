"""The table of faults in docs/reliability.md, with what the tests marked ``fault`` have tried.

A test that never calls `tried` counts as one try; one with several marks counts for each.
``make faults`` and ``make nightly`` print the rows of the page with the figures of the run.
"""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
_HEAD = "| fault | how it is made | tried | survived | lost |"


def rows(text: str) -> dict[str, str]:
    """The faults that the page lists, and how each is made."""
    table = text.split(_HEAD, 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table]
    return {fault: how for fault, how, *_ in cells}


def marked(folder: Path) -> set[str]:
    """The faults that some test under a folder is marked with."""
    sources = (path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))
    found = re.compile(r'\bfault\(\s*"([^"]+)"')
    return {name for source in sources for name in found.findall(source)}


@pytest.fixture
def tried(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Count tries of the fault that the test is marked with."""

    def count(times: int = 1) -> None:
        request.node.user_properties.append(("tried", times))

    return count


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let each report say which fault its test counts for."""
    for item in items:
        for mark in item.iter_markers("fault"):
            item.user_properties.append(("fault", mark.args[0]))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the page's table with the figures of this run, if its marks ask for faults.

    The nightly tests make many. A test that fails has lost its last try.
    """
    if not re.search(r"(?<!not )\b(fault|nightly)\b", config.option.markexpr):
        return
    tries, losses = Counter[str](), Counter[str]()
    for kind in ("passed", "failed"):
        for report in terminalreporter.stats.get(kind, []):
            own = max(1, sum(n for key, n in report.user_properties if key == "tried"))
            for fault in [name for key, name in report.user_properties if key == "fault"]:
                tries[fault] += own
                losses[fault] += report.failed
    terminalreporter.section("faults")
    terminalreporter.write_line(f"{_HEAD}\n|---|---|---|---|---|")
    for fault, how in rows(PAGE.read_text(encoding="utf-8")).items():
        cells = fault, how, tries[fault], tries[fault] - losses[fault], losses[fault]
        terminalreporter.write_line(f"| {' | '.join(map(str, cells))} |")
