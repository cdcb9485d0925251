"""Each stage once for each of its calls to the disk, and killed there; then again, undisturbed.

    python -m tests.faults.crash_program FOLDER kill|power|term EVERY [STAGE …]

Under ``kill``, kill -9 strikes before each call, half-way through each write, and behind the last
call. (After a call is before the next.) Under ``power`` all is gone in addition that no fsync has
covered. Under ``term`` it is SIGTERM, at 30 calls drawn with a fixed seed. EVERY takes one point of
so many. The process forks for each point, so it has no threads of Python. It prints one line of
JSON: for each stage the calls that were counted, the points that there are and those that were
tried, and what was wrong.
"""

import gc
import json
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from shardwise import errors
from shardwise.files.commit import abandon

from tests.faults import inject
from tests.faults.stages import STAGES, Stage, restored, state, visible_faults


def forked(
    folder: Path,
    work: Callable[[], None],
    fault: inject.Fault | None = None,
    said: Path | None = None,
) -> int:
    """Do something in a child, perhaps disturbed; its exit code, negative where a signal ended it.

    ``said`` is where to write what a command line would tell the user.
    """
    assert threading.active_count() == 1, "a process with threads must not fork"
    child = os.fork()
    if not child:
        code, words = errors.FAULT, ""
        log = open(said or os.devnull, "wb", buffering=0)  # noqa: SIM115 - before the fault
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


def counted(folder: Path, stage: Stage) -> list[str]:
    """The calls of a stage, by kind."""
    reader, writer = os.pipe()

    def work() -> None:
        calls = inject.Calls(folder, inject.nothing)
        stage.run(folder)
        with os.fdopen(writer, "w") as pipe:
            json.dump(calls.seen, pipe)

    assert forked(folder, work) == 0
    os.close(writer)
    with os.fdopen(reader) as pipe:
        return [kind for kind, _ in json.load(pipe)]


def warm_up(root: Path) -> None:
    """Load and compile here what every child would load and compile again."""
    folder = root / "warm" / "run"
    folder.mkdir(parents=True)
    stage = STAGES["reduce over another"]
    stage.prepare(folder)
    stage.run(folder)
    gc.collect()  # the pools of threads of its tasks end with them
    for thread in set(threading.enumerate()) - {threading.current_thread()}:
        thread.join()


def points(kinds: list[str], way: str) -> Iterator[tuple[int, str]]:
    """Where to strike, and how."""
    if way == "term":
        drawn = random.Random(len(kinds)).sample(range(len(kinds)), min(30, len(kinds)))
        yield from ((number, "term") for number in drawn)
        return
    for number, kind in enumerate(kinds):
        yield number, "before"
        if way == "kill" and kind in inject.WRITES:
            yield number, "half"
    yield len(kinds), "end"


def struck(folder: Path, stage: Stage, fault: inject.Fault) -> int:
    """Run a stage to its end, or until the fault strikes; the fault strikes at the end at last."""

    def work() -> None:
        stage.run(folder)
        fault(fault.at, inject.Call("end", "", lambda: None))

    return forked(folder, work, fault)


def tried(root: Path, stage: Stage, way: str, every: int) -> dict[str, object]:
    """Try one stage at all points."""
    folder, snapshot, aside = root / "run", root / "snapshot", root / "aside"
    for made in (folder, aside):
        made.mkdir(parents=True)
    assert forked(folder, lambda: stage.prepare(folder)) == 0
    restored(folder, snapshot)
    kinds = counted(folder, stage)
    before, after = state(snapshot), state(folder)
    tries, wrong = 0, []
    all_points = list(points(kinds, way))
    for point, how in all_points[::every]:
        restored(snapshot, folder)
        fault = {
            "kill": lambda at=point, half=how == "half": inject.Killed(at, half),
            "power": lambda at=point: inject.Power(at, folder, aside),
            "term": lambda at=point: inject.Terminated(at),
        }[way]()
        code = struck(folder, stage, fault)
        expected = (0, 128 + signal.SIGTERM) if way == "term" else (-signal.SIGKILL,)
        found = [] if code in expected else [f"it ended with {code}"]
        if way == "term":  # whoever is asked to end cleans up
            found += [f"{path.name} is left at once" for path in folder.rglob("*.tmp")]
        found += visible_faults(folder, before, after)
        if forked(folder, lambda: stage.run(folder)) != 0:
            found.append("the next run failed")
        elif state(folder) != after:
            found.append("the next run left something else")
        if way != "power":  # a journal that lost its last line with the power sweeps nothing
            found += [f"{path.name} is left" for path in folder.rglob("*.npy.*.tmp")]
        wrong += [[point, how, *kinds[point : point + 1], *found]] if found else []
        tries += 1
    return {"calls": len(kinds), "points": len(all_points), "tried": tries, "wrong": wrong}


def main() -> None:
    """Try the stages that are named, or all."""
    root, way, every, *names = Path(sys.argv[1]), *sys.argv[2:]
    warm_up(root)
    report = {
        name: tried(root / name.replace(" ", "_"), stage, way, int(every))
        for name, stage in STAGES.items()
        if name in names or not names
    }
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
