"""Sizes and times as people write them."""

import pytest
from shardwise.units import human_bytes, parse_bytes, seconds


@pytest.mark.parametrize(("text", "size"), [
    (4096, 4096), ("1.5 TB", 15 * 10**11), (" 3 KB ", 3000), ("0.5KiB", 512),
    (f"{2**70 + 1}PB", (2**70 + 1) * 10**15),
])  # fmt: skip
def test_sizes_are_read(text, size):
    """A number or a size with a unit is read to the byte."""
    assert parse_bytes(text) == size


@pytest.mark.parametrize(("size", "text"), [
    (1023, "1023 B"), (1024, "1.0 KiB"), (2**20 - 52, "1023.9 KiB"), (2**20 - 1, "1.0 MiB"),
])  # fmt: skip
def test_sizes_are_written(size, text):
    """No size rounds up to 1024 of its unit."""
    assert human_bytes(size) == text


@pytest.mark.parametrize("text", [
    "", "GiB", "-1", "1e3", "16gib", "1 XB", "16K", "1i", "0", "0.1B", "nan", "inf", "1,5GB",
    "9" * 400 + ".5",
])  # fmt: skip
def test_other_text_is_refused(text):
    """Text that is not a size, below one byte, or more than a float holds, is refused."""
    with pytest.raises(ValueError, match=r"size|less than one byte"):
        parse_bytes(text)


@pytest.mark.parametrize(("value", "text"), [
    (0.0123, "12.3 ms"), (0.9996, "1 s"), (9.5, "9.5 s"), (99.94, "99.9 s"), (100, "1 min 40 s"),
    (3599.6, "1 h 00 min"), (7265, "2 h 01 min"), (90_000, "1 d 01 h"),
])  # fmt: skip
def test_durations_have_the_two_units_that_matter(value: float, text: str) -> None:
    """From milliseconds to days."""
    assert seconds(value) == text
