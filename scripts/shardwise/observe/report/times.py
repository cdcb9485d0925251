"""Where the time of a run went: how long its shards took, and what each device did."""

from collections import Counter, defaultdict

import numpy as np

from shardwise.observe.status import Status

PHASES = {"read": "reading the input", "compute": "computing", "write": "writing the result"}
"""What the page calls the phases of a shard's work."""


def by_device(seen: Status) -> dict[str, Counter[str]]:
    """Of each device, by its label: its shards, their bytes, and the seconds of each phase."""
    found = defaultdict[str, Counter[str]](Counter)
    for own in seen.done:
        found[own.device.label].update({"shards": 1, "bytes": own.bytes, **own.held})
    return found


def took(seen: Status) -> float:
    """In how many seconds any shard was at work that is done."""
    spans = sorted((one.started, one.started + one.seconds) for one in seen.done)
    if not spans:
        return 0.0
    begins, ends = np.array(spans).T
    reached = np.maximum.accumulate(ends)
    pauses = np.clip(begins[1:] - reached[:-1], 0.0, None)
    return float(reached[-1] - begins[0] - pauses.sum())
