"""The dry run of many shards, beside an empty Snakemake workflow with as many jobs.

Prints the table of docs/performance.md. Both are timed in turn, as whole processes; the figure is
the median of the ratios of the pairs.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).parents[1]
SNAKEMAKE = str(Path(sys.executable).with_name("snakemake"))

# The same number of jobs in the same shape: a chain of two for each shard, then one for all.
EMPTY = """
IDS = [f"{{i:05}}" for i in range({shards})]
rule all:
    input: "sum"
rule start:
    output: "start"
    shell: "touch {{output}}"
rule a:
    input: "start"
    output: "a/{{i}}"
    shell: "touch {{output}}"
rule b:
    input: "a/{{i}}"
    output: "b/{{i}}"
    shell: "touch {{output}}"
rule c:
    input: expand("b/{{i}}", i=IDS)
    output: "c"
    shell: "touch {{output}}"
rule sum:
    input: "c"
    output: "sum"
    shell: "touch {{output}}"
"""

OURS = """
synthetic: {{matrices: {shards}, dim: 4}}
shards: {shards}
materialize: true
"""


def prepare(folder: Path, shards: int) -> tuple[list[str], list[str]]:
    """Write both workflows and return their commands."""
    for part in ("Snakefile", "config.yaml", "workflow", "scripts", "profiles"):
        source, target = REPO / part, folder / "ours" / part
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, target)
    (folder / "empty").mkdir()
    (folder / "empty" / "Snakefile").write_text(EMPTY.format(shards=shards))
    (folder / "ours" / "mine.yaml").write_text(OURS.format(shards=shards))
    options = ["--dry-run", "--quiet", "all"]
    return [
        SNAKEMAKE,
        "--profile",
        "profiles/local",
        "--configfile",
        "mine.yaml",
        *options,
    ], [SNAKEMAKE, "--cores", "1", *options]


def seconds(command: list[str], folder: Path) -> float:
    """Wall time of a command that must succeed."""
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True, env=os.environ)
    return time.perf_counter() - start


def main() -> None:
    """Time both in turn and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "ours").mkdir()
        ours, empty = prepare(folder, options.shards)
        pairs = [
            (seconds(ours, folder / "ours"), seconds(empty, folder / "empty"))
            for _ in range(options.pairs)
        ]
    jobs = 2 * options.shards + 4
    a, b = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(x / y for x, y in pairs)
    sys.stdout.write(
        "| dry run | jobs | seconds | ratio |\n|---|---|---|---|\n"
        f"| shardwise, {options.shards} shards | {jobs} | {a:.1f} | {ratio:.2f} |\n"
        f"| empty workflow of the same shape | {jobs} | {b:.1f} | 1 |\n"
    )


if __name__ == "__main__":
    main()
