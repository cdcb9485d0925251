"""Numbers and names as the page writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise import units
from shardwise.observe.observation import DeviceOfNode
from shardwise.observe.report import tables


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0123, "12.3 ms"), (0.9996, "1 s"), (9.5, "9.5 s"), (99.94, "99.9 s"),
        (100, "1 min 40 s"), (3599.6, "1 h 00 min"), (7265, "2 h 01 min"), (90_000, "1 d 01 h"),
        (None, "–"), (float("nan"), "–"),
    ],
)  # fmt: skip
def test_durations_have_the_two_units_that_matter(value: float | None, text: str) -> None:
    """From milliseconds to days."""
    assert units.seconds(value) == text


@given(st.text(), st.text(), st.text())
def test_devices_of_any_name_are_one_line(name: str, uuid: str, node: str) -> None:
    """What would steer a terminal, or turn the order of letters, is written out."""
    assert units.plain(DeviceOfNode(name, uuid, node).label).isprintable()


@given(st.text(min_size=1))
def test_links_stay_below_the_folder_of_the_page(path: str) -> None:
    """No name of a file makes an address of another kind."""
    address = tables.link(path).partition('href="')[2].partition('"')[0]
    assert address.startswith("./")
    assert ":" not in address
