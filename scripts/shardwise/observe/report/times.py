"""Where the time of a run went: how long its shards took, and what each device did."""

from collections import Counter
from dataclasses import dataclass, field

from shardwise.observe.status import DONE, RUNNING, Status
from shardwise.records.timeline import PHASES, Span, length, union
from shardwise.units import plain

PHASE_NAMES = ("waiting", "reading the input", "computing", "writing the result")
"""What the page calls the phases, in their order."""

_BREAK_SHARE, _BREAK_SECONDS = 0.25, 120.0
"""A pause of all devices longer than both (a share of all work, seconds) separates two runs."""

Part = tuple[str, str, float]
"""The class of a colour, what it stands for, and its share of a bar."""


@dataclass
class DeviceTime:
    """What a device did: its shards, the seconds in which it had any, and what held these up."""

    label: str
    shards: int = 0
    matrices: int = 0
    spans: list[Span] = field(default_factory=list)
    held: Counter[str] = field(default_factory=Counter)

    @property
    def busy(self) -> float:
        """Seconds in which it had a shard."""
        return length(union(self.spans))

    def parts(self, seconds: float) -> list[Part]:
        """The shares of a run of so many seconds: each phase, and the rest."""
        scale = min(1.0, self.busy / max(seconds, 1e-9)) / max(self.held.total(), 1e-9)
        shares = [self.held[phase] * scale for phase in PHASES]
        found = [(f"p{i}", PHASE_NAMES[i], share) for i, share in enumerate(shares)]
        rest = ("idle", "nothing, or an attempt that failed", 1.0 - sum(shares))
        return [part for part in (*found, rest) if part[2] > 0]


def look(seen: Status) -> tuple[list[DeviceTime], float]:
    """What each device did, and how many seconds the shards took, without breaks between runs."""
    found = dict[str, DeviceTime]()
    for own in seen.shards.values():
        if own.state in (DONE, RUNNING) and own.started is not None:
            label = plain(own.device.label if own.device else "unknown device")
            device = found.setdefault(own.device.key if own.device else "", DeviceTime(label))
            end = seen.at if own.finished is None else own.finished
            device.spans.append((own.started, max(own.started, end)))
            device.held.update(own.held or {})
            if own.state == DONE:
                device.shards += 1
                device.matrices += own.matrices
    devices = sorted(found.values(), key=lambda device: device.label)
    work = union(span for device in devices for span in device.spans)
    return devices, length(union(work, max(_BREAK_SECONDS, _BREAK_SHARE * length(work))))
