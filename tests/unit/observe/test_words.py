"""Numbers and names as the page writes them, and the axes that they stand at."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardwise.observe.observation import Device
from shardwise.observe.report import words
from shardwise.observe.report.parts import log_axis, nice_step, time_ticks


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0123, "12.3 ms"), (0.9996, "1 s"), (9.5, "9.5 s"), (99.94, "99.9 s"),
        (100, "1 min 40 s"),
        (3599.6, "1 h 00 min"), (7265, "2 h 01 min"), (90_000, "1 d 01 h"), (None, "–"),
    ],
)  # fmt: skip
def test_durations_have_the_two_units_that_matter(value: float | None, text: str) -> None:
    """From milliseconds to days."""
    assert words.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(3.9e9, "3.9 GB/s"), (999.6, "1 kB/s"), (0, "0 B/s"), (4.5e13, "45 TB/s")]
)
def test_rates_have_decimal_prefixes(value: float, text: str) -> None:
    """As disks and links are sold."""
    assert words.rate(value, "B/s") == text


def test_shares_round_to_nothing_and_to_all_only_where_that_is_so() -> None:
    """A little is not 0 %, and nearly all is not 100 %."""
    told = [words.share(value).replace("\u00a0", " ") for value in (0, 0.001, 0.5, 0.999, 1, 1.34)]
    assert told == ["0 %", "< 1 %", "50 %", "> 99 %", "100 %", "134 %"]


@given(st.text(), st.text(), st.text())
def test_devices_of_any_name_are_one_line(name: str, uuid: str, node: str) -> None:
    """What would steer a terminal, or turn the order of letters, is written out."""
    assert words.device(Device(name, uuid, node)).isprintable()


@given(st.text(min_size=1))
def test_links_stay_below_the_folder_of_the_page(path: str) -> None:
    """No name of a file makes an address of another kind."""
    found = words.link(path)
    assert found.startswith("./")
    assert ":" not in found


@given(st.floats(1e-6, 1e9))
def test_time_axes_have_a_few_labels_from_zero(length: float) -> None:
    """Labels stand inside the axis, in order, and are neither none nor a crowd."""
    marks = time_ticks(length)
    places = [at for at, _ in marks]
    assert places[0] == 0
    assert places == sorted(places)
    assert places[-1] <= 1 + 1e-6
    assert 2 <= len(marks) <= 8


@given(
    st.floats(min_value=5e-324, max_value=1.7e308), st.floats(min_value=5e-324, max_value=1.7e308)
)
def test_logarithmic_axes_hold_their_numbers(one: float, two: float) -> None:
    """The axis begins below and ends above, and its labels lie on it."""
    low, high, ticks = log_axis(min(one, two), max(one, two))
    assert low < high
    assert all(-1e-9 <= at <= 1 + 1e-9 for at, _ in ticks.marks)


@given(st.floats(1e-9, 1e12))
def test_steps_are_round_and_not_much_too_long(least: float) -> None:
    """1, 2 or 5 times a power of ten, at most 2.5 times the least."""
    assert least * (1 - 1e-6) <= nice_step(least) <= 2.5 * least * (1 + 1e-6)
