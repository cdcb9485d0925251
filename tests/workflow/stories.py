"""What may happen to a run while it works, and to its results: the rows of test_scenarios.py."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Generator

import numpy as np

from tests import processes
from tests.night import Night
from tests.workspace import Workspace

Story = Generator[None, "subprocess.Popen[str]", None]
"""Its first part prepares the run. The first yield returns the run, whose shards then wait, and the
second part strikes. A third part, after another yield, checks the run once it has ended."""


def a_bad_night(night: Night) -> Story:
    """A matrix holds a NaN, a task is cancelled, the processes of another are killed."""
    night.spoil(3)
    yield
    # Shards that a killed task has begun but not noted are tried again: not to be the bad one.
    failures = night.workspace.file("failed")
    night.wait_for(
        "the bad one has failed, or waits",
        lambda: [*failures.glob("00003*.json")] or not night.starts()["00003"],
    )
    one, *others = sorted(set(night.at_gate()) - {"00003"})
    night.cluster.cancel(night.at_gate()[one])
    for other in others[:1]:
        child = night.process(other)
        processes.kill([*processes.parents([child]), child])
    yield
    again = {shard for shard, count in night.starts().items() if count > 1}
    assert again <= {one, *others[:1]}, f"{again}, and not just {one} and {others[:1]}"


def many_faults(night: Night) -> Story:
    """The queue is full; one shard lacks memory, one is killed, one is killed each time.

    For a while the scheduler answers garbage about its jobs.
    """
    for shard, kind in enumerate(("poison", "memory", "killed"), 1):
        (night.root / f"fault.0000{shard}").write_text(kind)
    shims = night.shim() if night.cluster.cancels else None
    if shims:
        (shims / f"{night.cluster.submits}.next").write_text(f"{night.cluster.full}\n")
    yield
    if shims:
        (shims / f"{night.cluster.looks}.next").write_text("0 <html>busy</html>\n0 what?\n")
    yield
    if shims and night.own["dispatch"] != "array":  # nobody lists the tasks of an array
        assert not any(path.read_text() for path in shims.glob("*.next")), "all has been said"
    assert night.starts()["00001"] >= 2
    assert [night.starts()[shard] for shard in ("00002", "00003")] == [2, 2]


def interrupted(night: Night, number: signal.Signals = signal.SIGINT) -> Story:
    """Ctrl-C, or a closed terminal: one shard is whole, all others end at once."""
    run = yield
    one = min(night.at_gate())
    night.open(one)
    night.wait_for("one is done", night.receipts)
    os.killpg(run.pid, number)
    assert run.wait(300) == 130
    night.wait_for("nothing lives", night.idle)
    assert night.starts()[one] == 1
    yield
    assert set(night.receipts()) == {one}


def killed_by_9(night: Night) -> Story:
    """A second run at once is refused; when snakemake has died, so is a new run while jobs live."""
    run = yield
    second = night.run()
    assert (second.code, "another run works on" in second.output) == (75, True)
    run.kill()  # snakemake alone
    run.wait()
    second = night.run()
    assert (second.code, "unlock" in second.output) == (75, False)
    assert "jobs of an earlier run still" in second.output
    assert night.cluster.cancels in second.output
    night.open()
    night.wait_for("its jobs have ended", night.idle)


def a_silent_controller(night: Night) -> Story:
    """Shards end while the controller does not answer; others are submitted later."""
    yield
    at_work = time.time()
    night.wait_for("its jobs are saved", lambda: night.cluster.saved_since(at_work))
    night.cluster.kill_controller()
    try:
        night.open()
        said = f"{night.cluster.title} does not answer"
        if night.own["dispatch"] == "array":  # its tasks end without the controller
            said = "done"
        night.wait_for("it is said", lambda: f"shardwise: {said}" in night.output())
    finally:
        night.cluster.start_controller()


def a_lost_node(night: Night) -> Story:
    """A node crashes with the tasks that work on it; they run again elsewhere."""
    night.cluster.need_several_nodes()
    yield
    node = night.cluster.lost_node
    lost = night.at_gate(node)
    night.cluster.crash(node)
    night.open()
    try:
        yield
    finally:
        night.cluster.restore(node)
    assert lost
    assert node not in {night.receipts()[shard]["node"] for shard in lost}


def a_task_that_never_runs(night: Night) -> Story:
    """A waiting task is held for good, or finds no folder to start in: others take its shard."""
    yield
    night.wait_for("one waits", lambda: night.jobs("waiting"))
    night.cluster.hold(max(night.jobs("waiting"), key=lambda job: int(job.what)))
    yield
    assert set(night.starts().values()) == {1}


def requeued(night: Night) -> Story:
    """An operator requeues a running job: its shard is computed again, and no other."""
    yield
    (one, job), *_ = night.at_gate().items()
    process = night.process(one)
    night.cluster.call("scontrol", "update", f"JobId={job}", "Requeue=1")
    night.cluster.call("scontrol", "requeue", job)
    night.wait_for("it is ended", lambda: not processes.living([process]))
    yield
    assert night.starts() == Counter(dict.fromkeys(night.receipts(), 1) | {one: 2})
    assert not list(night.workspace.file("failed").glob("*")), "nobody is blamed"


Act = Callable[[Workspace, dict], None]
"""What happens to the folder of a finished run, or to its config."""


def lose(*patterns: str) -> Act:
    """Remove files and folders of the working folder."""

    def act(workspace: Workspace, config: dict) -> None:
        for path in [path for pattern in patterns for path in workspace.root.glob(pattern)]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return act


def each(*acts: Act) -> Act:
    """Several acts, one after the other."""

    def act(workspace: Workspace, config: dict) -> None:
        for one in acts:
            one(workspace, config)

    return act


def ask(*words: str, **values: object) -> Act:
    """Change the config; then run snakemake with ``words``, if there are any."""

    def act(workspace: Workspace, config: dict) -> None:
        workspace.configure(**config | values)
        if words:
            workspace.succeed(*words)

    return act


def change_input(workspace: Workspace, config: dict) -> None:
    """Put another matrix in the place of one, under an older time stamp; date the sum ahead."""
    path = workspace.root / "stack" / "5.npy"
    path.unlink()
    np.save(path, np.full((3, 3), 9.0))
    os.utime(path, (1e9, 1e9))
    ahead = time.time() + 3600
    os.utime(workspace.root / "out" / "summary.json", (ahead, ahead))


def change_comment(workspace: Workspace, config: dict) -> None:
    """Add a comment to the code of all stages."""
    for path in (workspace.root / "scripts").rglob("*.py"):
        path.write_text(path.read_text() + "\n# a comment\n")


def raise_version(workspace: Workspace, config: dict) -> None:
    """Raise the version of the code that computes products."""
    path = workspace.root / "scripts" / "shardwise" / "__init__.py"
    path.write_text(re.sub(r'"multiply": (\d+)', r'"multiply": 1\1', path.read_text()))


def move(workspace: Workspace, config: dict) -> None:
    """Rename the results folder."""
    (workspace.root / "out").rename(workspace.root / "moved")
    workspace.configure(**config | {"results": "moved"})


def copy(workspace: Workspace, config: dict) -> None:
    """Copy the results folder, with sums and page older than what they were made from."""
    shutil.copytree(workspace.root / "out", workspace.root / "copied", copy_function=shutil.copy)
    for at, path in enumerate(sorted((workspace.root / "copied").rglob("*.*"))):
        os.utime(path, (1e9 - at, 1e9 - at))
    workspace.configure(**config | {"results": "copied"})
