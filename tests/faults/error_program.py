"""Each stage once for each of its calls to the disk, which fails there; then again, undisturbed.

    python -m tests.faults.error_program FOLDER EVERY [STAGE …]

A disk turns read-only at one call of EVERY, as it can at each; all other faults are made wherever
they can happen. It prints one line of JSON: for each fault how often it was made, and what was
wrong.
"""

import errno
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.faults import inject
from tests.faults.crash_program import counted, forked, warm_up
from tests.faults.stages import STAGES, Stage, restored, state, visible_faults

FULL = "disk full"
QUOTA = "quota error at fsync"
BROKEN = "input/output error"
READ_ONLY = "results folder that turns read-only in mid-run"
LOST = "rename that reports failure but happened"
REFUSED = "rename that fails"
SHORT = "short write"
PLAIN = "disk without permissions or flushes of folders"
TOLD = {FULL: "No space left on device", QUOTA: "quota exceeded", READ_ONLY: "Read-only file"}

_NEW = ("open", "mkdir", "fallocate", "ftruncate", *inject.WRITES)
_ALL = (*_NEW, "fsync", "fchmod", "unlink", *inject.RENAMES, "rmdir", "truncate")
_FRESH = [name for name in STAGES if not name.endswith("another")]


def faults(kinds: list[str], every: int) -> Iterator[tuple[str, int, inject.Fault]]:
    """Every fault at every call where it can happen; a read-only disk at one of so many."""
    for at, kind in enumerate(kinds):
        if kind in _NEW:
            yield FULL, at, inject.failing_from(at, errno.ENOSPC, _NEW)
        if kind == "fsync":
            yield QUOTA, at, inject.failing(at, errno.EDQUOT)
        if kind in ("fsync", "fchmod"):
            yield PLAIN, at, inject.plain(at)
        if kind in ("fsync", "open", *inject.WRITES):
            yield BROKEN, at, inject.failing(at, errno.EIO)
        if kind in inject.WRITES:
            yield SHORT, at, inject.failing(at, None)
        if kind in inject.RENAMES:
            yield LOST, at, inject.failing(at, errno.EIO, done=True)
            yield REFUSED, at, inject.failing(at, errno.EIO)
        if at % every == 0:
            yield READ_ONLY, at, inject.failing_from(at, errno.EROFS, _ALL)


def judged(fault: str, code: int, words: str, folder: Path, after: dict[str, bytes]) -> list[str]:
    """What is wrong with the end of a stage that met a fault."""
    found = []
    if code == 0:
        found += [] if state(folder) == after else ["it ended with 0, but is not done"]
    elif code != 75 or fault in (LOST, SHORT, PLAIN):
        found.append(f"it ended with {code}: {words}")
    elif "try again" not in words or TOLD.get(fault, "") not in words or str(folder) not in words:
        found.append(f"it says: {words}")
    if fault != READ_ONLY:  # there nothing can be removed
        found += [f"{path.name} is left" for path in folder.rglob("*.tmp")]
    return found


def tried(root: Path, stage: Stage, every: int, tries: Counter) -> Iterator[list[object]]:
    """Try one stage with all faults; what was wrong."""
    folder, snapshot = root / "run", root / "snapshot"
    folder.mkdir(parents=True)
    assert forked(folder, lambda: stage.prepare(folder)) == 0
    restored(folder, snapshot)
    kinds = counted(folder, stage)
    before, after = state(snapshot), state(folder)
    for name, at, fault in faults(kinds, every):
        restored(snapshot, folder)
        said = root / "said"
        code = forked(folder, lambda: stage.run(folder), fault, said)
        found = judged(name, code, said.read_text(), folder, after)
        found += visible_faults(folder, before, after)
        if forked(folder, lambda: stage.run(folder)) != 0:
            found.append("the next run failed")
        elif state(folder) != after:
            found.append("the next run left something else")
        tries[name] += 1
        if found:
            yield [name, at, kinds[at], *found]


def main() -> None:
    """Try the stages that are named, or all that begin with nothing of another plan."""
    root, every, *names = Path(sys.argv[1]), *sys.argv[2:]
    warm_up(root)
    tries: Counter = Counter()
    wrong = [
        [stage, *found]
        for stage in names or _FRESH
        for found in tried(root / stage.replace(" ", "_"), STAGES[stage], int(every), tries)
    ]
    sys.stdout.write(json.dumps({"tried": tries, "wrong": wrong}) + "\n")


if __name__ == "__main__":
    main()
