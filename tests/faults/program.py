"""Disturbs each stage at each of its calls to the disk, one per try; then runs it undisturbed.

    python -m tests.faults.program FOLDER kill|power|term|errors EVERY [STAGE …]

Under ``kill``, kill -9 strikes before each call, half-way through each write, and after the last
call. (After any other call is before the next.) Under ``power`` all that no fsync has covered is
lost as well. Under ``term`` SIGTERM strikes at 30 calls drawn with a fixed seed. Under ``errors``
calls fail, wherever they can. EVERY is the stride over calls; no rename is left out.
The process forks for each try, so it has no Python threads. It prints one line of JSON: how often
each fault was tried, how many tries each stage had, and what was wrong.
"""

import errno
import gc
import json
import os
import random
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from shardwise import errors
from shardwise.files.commit import abandon

from tests.faults import inject
from tests.faults.inject import RENAMES, WRITES, Fault, failing, failing_from, once
from tests.faults.stages import STAGES, restored, state, visible_faults

KILL, TERM = "kill -9 at a call to the disk", "SIGTERM at 30 moments"
POWER = "power loss at a call to the disk"
ENDED = {"kill": KILL, "power": POWER, "term": TERM}
FULL = "disk full"
QUOTA = "quota error at fsync"
BROKEN = "input/output error"
READ_ONLY = "results folder that turns read-only in mid-run"
LOST = "rename that reports failure but happened"
REFUSED = "rename that fails"
SHORT = "short write"
PLAIN = "disk without flushes of folders"
TOLD = {FULL: "No space left on device", QUOTA: "quota exceeded", READ_ONLY: "Read-only file"}

_NEW = ("open", "mkdir", "ftruncate", *WRITES)
_ALL = (*_NEW, "fsync", "unlink", *RENAMES, "rmdir", "truncate")
FAILURES: tuple[tuple[str, tuple[str, ...], Callable[[int], Fault]], ...] = (
    (LOST, RENAMES, lambda at: once(at, failing(errno.EIO, done=True))),
    (REFUSED, RENAMES, lambda at: once(at, failing(errno.EIO))),
    (FULL, _NEW, lambda at: failing_from(at, errno.ENOSPC, _NEW)),
    (QUOTA, ("fsync",), lambda at: once(at, failing(errno.EDQUOT))),
    (PLAIN, ("fsync",), lambda at: once(at, inject.plain)),
    (BROKEN, ("fsync", "open", *WRITES), lambda at: once(at, failing(errno.EIO))),
    (SHORT, WRITES, lambda at: once(at, lambda call: call.half())),
    (READ_ONLY, _ALL, lambda at: failing_from(at, errno.EROFS, _ALL)),
)
"""The errors, the kinds of calls that each may strike, and what makes one from a call on."""

Tries = Iterator[tuple[str, int, Fault]]
"""The names of faults, the number of the call that each strikes, and the fault."""


def ends(way: str, kinds: list[str], every: int, folder: Path, aside: Path) -> Tries:
    """What ends a stage, by ``kill``, ``power`` or ``term``."""
    if way == "term":
        drawn = random.Random(len(kinds)).sample(range(len(kinds)), min(30, len(kinds)))
        signal.signal(signal.SIGTERM, errors.terminate)  # handled as in a command line
        yield from ((TERM, at, once(at, inject.terminated)) for at in drawn)
        return
    renamed = [at + 1 for at, kind in enumerate(kinds) if kind in RENAMES]
    points = sorted({*range(0, len(kinds), every), *renamed, len(kinds)})
    if way == "power":
        yield from ((POWER, at, inject.Power(at, folder, aside)) for at in points)
        return
    for at in points:
        yield KILL, at, once(at, lambda call: inject.die())
        if {*WRITES} & {*kinds[at : at + 1]}:
            yield KILL, at, once(at, lambda call: (call.half(), inject.die()))


def failures(kinds: list[str], every: int) -> Tries:
    """Every error where it can happen: at each rename, and at every ``every``-th call."""
    for at, kind in enumerate(kinds):
        for name, struck, fault in FAILURES:
            if kind in struck and (at % every == 0 or struck is RENAMES):
                yield name, at, fault(at)


def forked(
    folder: Path, work: Callable[[], None], fault: Fault | None = None, said: str = os.devnull
) -> int:
    """Do ``work`` in a forked child, perhaps with a fault; its exit code, -n if signal n ended it.

    ``said`` is the file that gets what a command line would tell the user.
    """
    assert threading.active_count() == 1, "a process with threads must not fork"
    child = os.fork()
    if not child:
        code, words = errors.FAULT, ""
        log = open(said, "wb", buffering=0)  # noqa: SIM115 - before the fault
        try:
            if fault:
                inject.Calls(folder, fault)
            work()
            code = 0
        except BaseException as error:
            abandon()  # as a command line of several ranks does
            code, words = errors.verdict(error)
            words = f"{words} ({error!r})" if code == errors.FAULT else words
        finally:
            log.write(words.encode())
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def warm_up(root: Path) -> None:
    """Load and compile here what every child would load and compile again."""
    folder = root / "warm" / "run"
    folder.mkdir(parents=True)
    for step in STAGES["reduce over another"]:
        step(folder)
    gc.collect()  # the thread pools of its tasks end with the tasks
    for thread in set(threading.enumerate()) - {threading.current_thread()}:
        thread.join()


def judged(fault: str, code: int, words: str, folder: Path, after: dict[str, bytes]) -> list[str]:
    """What is wrong with the end of a stage that met a fault."""
    if fault in (KILL, POWER):
        return [] if code == -signal.SIGKILL else [f"it ended with {code}"]
    found = []
    if code == 0:
        found += [] if state(folder) == after else ["it ended with 0, but is not done"]
    elif code != (143 if fault == TERM else 75) or fault in (LOST, SHORT, PLAIN):
        found.append(f"it ended with {code}: {words}")
    elif fault != TERM and not all(
        part in words for part in ("try again", TOLD.get(fault, ""), str(folder))
    ):
        found.append(f"it says: {words}")
    if fault != READ_ONLY:  # then nothing can be removed
        found += [f"{path.name} is left at once" for path in folder.rglob("*.tmp")]
    return found


def tried(root: Path, name: str, way: str, every: int, counts: Counter) -> Iterator[list[object]]:
    """Try one stage at all points; yields what was wrong."""
    folder, snapshot, aside, said = (root / name for name in ("run", "snapshot", "aside", "said"))
    for made in (folder, aside):
        made.mkdir(parents=True)
    *before_it, stage = STAGES[name]
    assert forked(folder, lambda: [step(folder) for step in before_it]) == 0
    restored(folder, snapshot)

    def count() -> None:
        calls = inject.Calls(folder, lambda number, call: call.do())
        stage(folder)
        said.write_text(" ".join(calls.seen))

    assert forked(folder, count) == 0
    kinds = said.read_text().split()
    before, after = state(snapshot), state(folder)
    erring = way == "errors"
    tries = failures(kinds, every) if erring else ends(way, kinds, every, folder, aside)
    for kind, at, fault in tries:
        restored(snapshot, folder)

        def work(fault: Fault = fault, at: int = at) -> None:
            stage(folder)
            if not erring:  # the last try strikes after the last call
                fault(at, inject.Call("end", "", lambda: None))

        code = forked(folder, work, fault, str(said))
        found = judged(kind, code, said.read_text(), folder, after)
        found += visible_faults(folder, before, after)
        if forked(folder, lambda: stage(folder)) != 0:
            found.append("the next run failed")
        elif state(folder) != after:
            found.append("the next run left something else")
        # Power loss may take the journal's line that tells what to sweep.
        if kind in (KILL, TERM):
            found += [f"{path.name} is left" for path in folder.rglob("*.npy.*.tmp")]
        counts[kind] += 1
        if found:
            yield [kind, at, *kinds[at : at + 1], *found]


def main() -> None:
    """Try the named stages, by default all; under ``errors`` those over no other plan's results."""
    root, way, every, *names = Path(sys.argv[1]), *sys.argv[2:]
    warm_up(root)
    fresh = [name for name in STAGES if way != "errors" or not name.endswith("another")]
    counts, wrong, stages = Counter[str](), [], {}
    for name in names or fresh:
        before = counts.total()
        folder = root / name.replace(" ", "_")
        found = tried(folder, name, way, int(every), counts)
        wrong += [[name, *one] for one in found]
        stages[name] = counts.total() - before
    sys.stdout.write(json.dumps({"tried": counts, "stages": stages, "wrong": wrong}) + "\n")


if __name__ == "__main__":
    main()
