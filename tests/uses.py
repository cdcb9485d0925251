"""Who used which device when."""

import itertools
from collections.abc import Iterable


def one_at_a_time(uses: Iterable[tuple[str, float, float]]) -> dict[str, int]:
    """Check that no two uses of a device overlap: (UUID, begin, end); gives the uses of each."""
    found: dict[str, list[tuple[float, float]]] = {}
    for uuid, begin, end in uses:
        found.setdefault(uuid, []).append((begin, end))
    for uuid, intervals in found.items():
        for (_, end), (begin, _) in itertools.pairwise(sorted(intervals)):
            assert end <= begin, f"two tasks at once on {uuid}: {sorted(intervals)}"
    return {uuid: len(intervals) for uuid, intervals in found.items()}


def recorded(text: str) -> list[tuple[str, float, float]]:
    """The uses that tasks have written, one per line: a UUID and two times."""
    rows = [line.split() for line in text.splitlines()]
    return [(uuid, float(begin), float(end)) for uuid, begin, end in rows]
