"""Times whole commands, each in its own process, next to the least that such a command must do.

Groups: ``array``, dry runs whose graph does not grow, with none, half and all of the products
there; ``jobs``, dry runs next to empty Snakemake workflows of as many jobs; ``task``, one tiny
matrix; ``whole``, a run on large files next to a script and empty jobs; ``after``, the stages after
the shards. All commands of a group take turns. Each figure is the median over the rounds; the
memory is that of the largest process. ``--shards`` replaces 10,000 under ``jobs``, 768 files of
67 MB under ``whole``, and 100,000 under ``array`` and ``after``. TMPDIR names the disk.
"""

import contextlib
import functools
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import harness
import numpy as np
from peers import Task

RUN = ["-m", "snakemake", "--cores", "all", "--quiet", "all", "--forceall"]
DRY = ["-m", "snakemake", "--cores", "1", "--quiet", "all", "--dry-run"]

OURS = ["--profile", "profiles/local", "--configfile", "mine.yaml"]

# A workflow of as many empty jobs in the same graph: a chain of two for each shard.
EMPTY = """
IDS = [f"{{i:05}}" for i in range({shards})]
rule all:
    input: {all}"sum"
rule plan:
    output: "plan"
    shell: "touch {{output}}"
rule shard:
    input: "plan"
    output: "shards/{{i}}.npy"{shard}
    shell: "touch {{output}}"
rule multiply:
    input: {plan}"shards/{{i}}.npy"
    output: {receipt}"products/{{i}}.npy"{multiply}
    shell: "touch {{output}}"
rule reduce:
    input: expand("products/{{i}}.npy", i=IDS)
    output: "sum"
    shell: "touch {{output}}"
"""
EACH = """
    log: "logs/{}/{{i}}"
    resources: mem_mb=1000, runtime=10
    params: digest="x"
"""
# What our jobs declare as well; without it each empty job has one file and nothing else.
SAME = {
    "all": 'expand("products/{i}.{kind}", i=IDS, kind=["npy", "json"]), ',
    "plan": '"plan", ',
    "receipt": '"products/{i}.json", ',
    **{rule: EACH.format(rule) for rule in ("shard", "multiply")},
}
ONE_JOB = 'rule all:\n    output: "sum"\n    shell: "touch {output}"\n'
DEVICE = "import cupy; cupy.cuda.Device(0).use(); cupy.zeros(1)"

Commands = dict[str, tuple[Path, list[str]]]  # a folder, and the words after Python


def project(folder: Path, shards: int, dispatch: str, done: int = 0) -> tuple[Path, list[str]]:
    """A dry run in a copy of the project in which ``done`` shards have products."""
    from shardwise.multiply import copy

    from tests import factories
    from tests.workspace import Workspace

    own = {"synthetic": {"matrices": shards, "dim": 4}, "shards": shards, "materialize": True}
    Workspace.create(folder).configure(**own, backend="numpy", dispatch=dispatch)
    if done:
        with contextlib.chdir(folder):
            plan = factories.plan(Path(), results="results/default", **own)
            copy.synthesize(plan)
            factories.repeated(plan, done)
    return folder, [*DRY, "--configfile", "mine.yaml"]


def empty(folder: Path, text: str, words: list[str] = DRY) -> tuple[Path, list[str]]:
    """Snakemake, by default in a dry run, on a workflow that is just the Snakefile ``text``."""
    folder.mkdir()
    (folder / "Snakefile").write_text(text)
    return folder, words


def under_array(folder: Path, shards: int) -> Commands:
    """One job for all shards, and one empty job."""
    rows = {
        f"array, {shards} shards, {name} of the products there":
        project(folder / name, shards, "array", done)
        for name, done in (("none", 0), ("half", shards // 2), ("all", shards))
    }  # fmt: skip
    return rows | {"one empty job": empty(folder / "one", ONE_JOB)}


def under_jobs(folder: Path, shards: int) -> Commands:
    """One job per shard, and as many empty jobs of Snakemake alone."""
    same = EMPTY.format(shards=shards, **SAME)
    bare = EMPTY.format(shards=shards, **dict.fromkeys(SAME, ""))
    return {
        f"jobs, {shards} shards": project(folder / "jobs", shards, "jobs"),
        "empty jobs with the same files, logs and resources": empty(folder / "same", same),
        "empty jobs with one file each": empty(folder / "bare", bare),
    }


def task(folder: Path, _: int) -> Commands:
    """A task of one tiny matrix; Python that touches the device or imports NumPy; bare Python."""
    from shardwise.devices import choose

    from tests import factories

    np.save(folder / "stack.npy", np.ones((1, 4, 4), "float32"))
    gpu = choose.driver_cuda_version() is not None
    backend, touch = ("cupy", DEVICE) if gpu else ("numpy", "import numpy")
    plan = harness.plan(folder, folder / "stack.npy", backend=backend).results.plan
    words = factories.command("multiply", "--plan", plan, "--shard", "00000")
    return {
        "scripts/multiply.py": (folder, words[1:]),
        touch: (folder, ["-c", touch]),
        "Python alone": (folder, ["-c", "pass"]),
    }


def whole(folder: Path, files: int) -> Commands:
    """A whole run on cached files; the script or plain loop on the same files; five empty jobs."""
    from shardwise.devices import choose

    from tests.workspace import Workspace

    gpu = choose.driver_cuda_version() is not None
    kind: dict[str, Any] = {"peer": "Script"} if gpu else {"peer": "Plain", "backend": "numpy"}
    row = Task("float32", 4096 if gpu else 64, readers=16, folder=str(folder), **kind)
    space = Workspace.create(folder / "own")
    own = {"input": "*.npy", "keep": "sum", "materialize": False, "dispatch": "pool"}
    space.configure(**own, backend=row.backend, reduce={"ranks": 2})
    paths = [space.root / f"{i:03}.npy" for i in range(files)]
    for seed, path in enumerate(paths):
        harness.write_stack(path, row.dtype, row.shape, seed)
    row = replace(row, files=tuple(map(str, paths)))
    script = f"import sys; sys.path[:0] = {sys.path!r}; import peers; from peers import Task\n"
    script += f"row = {row!r}; peers.{row.peer}(row).run(row.files)"
    bare = EMPTY.format(shards=1, **dict.fromkeys(SAME, ""))
    return {
        f"a run of {files} files": (space.root, [*RUN, *OURS]),
        "the script" if gpu else "the plain loop": (folder, ["-c", script]),
        "five empty jobs": empty(folder / "bare", bare, RUN),
    }


def after(folder: Path, shards: int) -> Commands:
    """The stages after the shards, which are tiny and alike: only files and receipts cost time."""
    from shardwise.records import ledger

    from tests import factories

    stack = np.broadcast_to(np.array([[1.0, 2.0], [3.0, 5.0]]), (shards, 2, 2))
    plan = factories.plan(folder, stack, shards=shards, materialize=False)
    ledger.write(factories.repeated(plan))
    factories.reduced(plan)
    os.sync()  # else the first stage waits for these writes
    words = "--plan", plan.results.plan
    return {
        f"ledger, {shards} shards": (folder, factories.command("ledger", *words)[1:]),
        "reduce, 2 ranks": (folder, factories.command("reduce", *words, "--ranks", "2")[1:]),
        "verify": (folder, factories.command("verify", plan.results.root)[1:]),
    }


def cost(folder: Path, line: list[str]) -> tuple[float, float, float]:
    """Run Python with this line; return seconds, CPU seconds, and MiB of the largest process."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, *line], stdout=subprocess.DEVNULL, cwd=folder)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{line} failed")
    cpu = usage.ru_utime + usage.ru_stime
    return time.perf_counter() - start, cpu, usage.ru_maxrss / 1024


GROUPS = {"array": (under_array, 100_000), "jobs": (under_jobs, 10_000),
          "after": (after, 100_000), "task": (task, 1), "whole": (whole, 768)}  # fmt: skip
"""By group, the function that makes its commands, and the default for ``--shards``."""


def main() -> None:
    """Time group by group and print the table."""
    defaults = {"groups": list(GROUPS), "shards": 0, "rounds": 3}
    options = harness.options(__doc__, {"shards": 4, "rounds": 1}, **defaults)
    harness.say(f"Commands, {harness.machine()}")
    harness.heading("command", "seconds", "the first takes, times", "CPU seconds", "MiB")
    for name in options.groups:
        make, shards = GROUPS[name]
        with tempfile.TemporaryDirectory() as folder:
            rows = make(Path(folder), options.shards or shards)
            calls = {label: functools.partial(cost, *row) for label, row in rows.items()}
            turns = [np.array(own) for own in harness.in_turn(calls, options.rounds).values()]
        for label, own in zip(calls, turns, strict=True):
            times = float(np.median(turns[0][:, 0] / own[:, 0]))
            seconds, cpu, mib = np.median(own, axis=0).tolist()
            harness.row(label, seconds, times, cpu, mib)


if __name__ == "__main__":
    main()
