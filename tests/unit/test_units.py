"""Sizes and times as people write them."""

import pytest
from shardwise.units import human_bytes, parse_bytes, seconds


@pytest.mark.parametrize(("found", "right"), [
    (parse_bytes(4096), 4096), (parse_bytes("1.5 TB"), 15 * 10**11), (parse_bytes(" 3 KB "), 3000),
    (parse_bytes("0.5KiB"), 512), (parse_bytes(f"{2**70 + 1}PB"), (2**70 + 1) * 10**15),
    (human_bytes(1023), "1023 B"), (human_bytes(1024), "1.0 KiB"),
    (human_bytes(2**20 - 52), "1023.9 KiB"), (human_bytes(2**20 - 1), "1.0 MiB"),
    (seconds(0.0123), "12.3 ms"), (seconds(0.9996), "1 s"), (seconds(9.5), "9.5 s"),
    (seconds(99.94), "99.9 s"), (seconds(100), "1 min 40 s"), (seconds(3599.6), "1 h 00 min"),
    (seconds(7265), "2 h 01 min"), (seconds(90_000), "1 d 01 h"),
])  # fmt: skip
def test_sizes_and_times(found, right):
    """Sizes are read to the byte, and none is written as 1024 of its unit; times have two units."""
    assert found == right


@pytest.mark.parametrize("text", [
    "", "GiB", "-1", "1e3", "16gib", "1 XB", "16K", "1i", "0", "0.1B", "nan", "inf", "1,5GB",
    "9" * 400 + ".5",
])  # fmt: skip
def test_other_text_is_refused(text):
    """Text that is not a size, below one byte, or more than a float holds, is refused."""
    with pytest.raises(ValueError, match="is not a size of one byte or more"):
        parse_bytes(text)
