"""What killed runs have left on this machine; the doctor removes nothing."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from shardwise.doctor.findings import Finding, note, ok
from shardwise.errors import some
from shardwise.files.paths import for_bash
from shardwise.processes import leftovers
from shardwise.units import human_bytes

_MOST_NAMED = 5


def findings() -> Iterator[Finding]:
    """Temporary folders, and shared memory that nobody uses."""
    folders, segments = leftovers.folders(), _sizes(leftovers.segments())
    if not folders and not segments:
        yield ok("killed runs", "nothing is left of them here")
    if folders:
        named = some(map(str, folders), _MOST_NAMED)
        text = f"temporary folders of killed snakemakes: {named}"
        yield note("folders", text, "the next run removes them", folders=list(map(str, folders)))
    if segments:
        size = sum(segments.values())
        text = (
            f"{len(segments)} segments of MPI, {human_bytes(size)}, which no process uses: left by "
            "ranks that were killed as they started, or by another program"
        )
        names = " ".join(map(for_bash, segments))
        facts = {"segments": list(map(str, segments)), "bytes": size}
        yield note("shared memory", text, f"if none of these is yours to keep: rm {names}", **facts)


def _sizes(paths: list[Path]) -> dict[Path, int]:
    """The bytes of each file that is still there: a rank that starts takes its names away."""
    sizes = {}
    for path in paths:
        with suppress(FileNotFoundError):
            sizes[path] = path.stat().st_size
    return sizes
