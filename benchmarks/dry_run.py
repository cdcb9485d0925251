"""The dry run of many shards, beside empty Snakemake workflows with as many jobs.

Prints the figures of docs/performance.md: array, whose graph does not grow, with none, half and all
of the products there, then `dispatch: jobs`. All of a group are timed in turn, as whole processes;
each figure is the median over the rounds, of the seconds and of the ratio within a round. The
memory is the most that one process of a dry run took. `--shards 0` leaves `jobs` out.
"""

import contextlib
import shutil
import sys
import tempfile
from pathlib import Path

import harness
import numpy as np

sys.path.insert(0, str(harness.REPO))

SNAKEMAKE = str(Path(sys.executable).with_name("snakemake"))

# As many jobs in the same shape, a chain of two for each shard. The lines marked "more" are for the
# files, logs and resources that our jobs have: without them each job has one file and nothing else.
EMPTY = """
IDS = [f"{{i:05}}" for i in range({shards})]
rule all:
    input:
        expand("products/{{i}}.{{kind}}", i=IDS, kind=["npy", "json"]), "sum",  # more
        "page",
rule plan:
    output: "plan"
    log: "logs/plan"  # more
    shell: "touch {{output}}"
rule synthesize:
    input: "plan"
    output: "input"
    log: "logs/synthesize"  # more
    shell: "touch {{output}}"
rule shard:
    input:
        "plan",  # more
        "input",
    output: "shards/{{i}}.npy"
    log: "logs/shard/{{i}}"  # more
    resources: mem_mb=1000, runtime=10  # more
    params: digest="x"  # more
    shell: "touch {{output}}"
rule multiply:
    input:
        "plan",  # more
        "shards/{{i}}.npy",
    output:
        "products/{{i}}.json",  # more
        "products/{{i}}.npy",
    log: "logs/multiply/{{i}}"  # more
    resources: mem_mb=1000, runtime=10  # more
    params: digest="x"  # more
    shell: "touch {{output}}"
rule ledger:
    input: expand("products/{{i}}.npy", i=IDS)
    output: "ledger"
    log: "logs/ledger"  # more
    shell: "touch {{output}}"
rule reduce:
    input: "ledger"
    output: "sum"
    log: "logs/reduce"  # more
    shell: "touch {{output}}"
rule report:
    input:
        "plan", "ledger",  # more
        "sum",
    output:
        "metrics",  # more
        "page",
    log: "logs/report"  # more
    shell: "touch {{output}}"
"""

ONE_JOB = """
rule all:
    output: "sum"
    shell: "touch {output}"
"""

OURS = """
synthetic: {{matrices: {shards}, dim: 4}}
shards: {shards}
materialize: true
backend: numpy
dispatch: {dispatch}
"""

DRY = [SNAKEMAKE, "--cores", "1", "--dry-run", "--quiet", "all"]
OWN = [*DRY, "--configfile", "mine.yaml"]
Workflows = dict[str, tuple[Path, list[str]]]
"""Folders and commands, by what the tables call them."""


def shardwise(folder: Path, shards: int, dispatch: str) -> Path:
    """A copy of the project with a config of its own."""
    folder.mkdir()
    for part in ("Snakefile", "config.yaml", "workflow", "scripts", "profiles"):
        source = harness.REPO / part
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, folder / part)
    (folder / "mine.yaml").write_text(OURS.format(shards=shards, dispatch=dispatch))
    return folder


def bare(folder: Path, text: str) -> Path:
    """A workflow that is nothing but its rules."""
    folder.mkdir()
    (folder / "Snakefile").write_text(text)
    return folder


def under_jobs(folder: Path, shards: int) -> Workflows:
    """One job per shard, and the same of Snakemake alone."""
    lines = EMPTY.format(shards=shards).splitlines()
    one_each = "\n".join(line for line in lines if not line.endswith("# more"))
    same_files = bare(folder / "same", "\n".join(lines))
    return {
        f"jobs, {shards} shards": (shardwise(folder / "jobs", shards, "jobs"), OWN),
        "empty jobs with the same files, logs and resources": (same_files, DRY),
        "empty jobs with one file each": (bare(folder / "bare", one_each), DRY),
    }


def under_array(folder: Path, shards: int) -> Workflows:
    """One job for all shards, and one empty job."""
    rows = {}
    for name, done in (("none", 0), ("half", shards // 2), ("all", shards)):
        root = shardwise(folder / f"array{done}", shards, "array")
        if done:
            pretend(root, done)
        rows[f"array, {shards} shards, {name} of the products there"] = (root, OWN)
    return rows | {"one empty job": (bare(folder / "one", ONE_JOB), DRY)}


def pretend(root: Path, done: int) -> None:
    """Give the first shards products: one that was computed, under the names of all."""
    from shardwise.multiply import synthetic
    from shardwise.plan import plan

    from tests import factories

    harness.cost([sys.executable, "scripts/plan.py", "--configfile", "config.yaml", "mine.yaml"],
                 cwd=root)  # fmt: skip
    with contextlib.chdir(root):
        made = plan.load(Path("results/default/plan.tsv"))
        synthetic.write(made)
        factories.repeated(made, done)


def main() -> None:
    """Time all in turn and print the table."""
    parser = harness.parser(__doc__)
    parser.add_argument("--shards", type=int, default=10_000, help="under jobs")
    parser.add_argument("--array-shards", type=int, default=100_000, help="under array")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.tiny:
        options.shards, options.array_shards, options.rounds = 3, 4, 1
    table = harness.Table(["dry run", "seconds", "the first takes", "CPU seconds", "MiB"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        groups = [under_array(folder, options.array_shards)]
        groups += [under_jobs(folder, options.shards)] if options.shards else []
        for rows in groups:
            turns = np.array([
                [harness.cost(line, cwd=where) for where, line in rows.values()]
                for _ in range(options.rounds)
            ])  # fmt: skip
            times = np.median(turns[:, :1, 0] / turns[:, :, 0], axis=0)
            for label, own, ratio in zip(rows, np.median(turns, axis=0), times, strict=True):
                cells = f"{own[0]:.1f}", f"{ratio:.2f} times as long", f"{own[1]:.1f}"
                table.row([label, *cells, f"{own[2]:.0f}"])
    table.end()


if __name__ == "__main__":
    main()
